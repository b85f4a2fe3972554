/* Finds the dimensions of one operand in a plan. */
#include "layout.h"

#include <string.h>

/* Inserts a dimension, in the order of strides. */
static void add(struct cuda_layout *v, int64_t size, int64_t *stride)
{
    unsigned at = v->rank;

    if (size == 1 || *stride == 0)
        return;
    for (; at > 0 && v->strides[at - 1] < *stride; at--) {
        v->shape[at] = v->shape[at - 1];
        v->strides[at] = v->strides[at - 1];
        v->in_plan[at] = v->in_plan[at - 1];
    }
    v->shape[at] = size;
    v->strides[at] = *stride;
    v->in_plan[at] = stride;
    v->rank++;
    v->count *= (uint64_t)size;
}

static struct cuda_layout layout_of_matrix(struct plan_gemm *g, unsigned operand)
{
    struct plan_matrix *matrix = (struct plan_matrix *)plan_gemm_matrix(g, operand);
    struct cuda_layout v = {.count = 1};

    for (unsigned i = 0; i < g->batch_rank; i++)
        add(&v, g->batch_shape[i], &matrix->batch[i]);
    add(&v, operand == PLAN_GEMM_B ? g->k : g->m, &matrix->row);
    add(&v, operand == PLAN_GEMM_A ? g->k : g->n, &matrix->column);
    return v;
}

struct cuda_layout cuda_layout_of(struct plan *plan, unsigned operand)
{
    struct cuda_layout v = {.count = 1};

    if (plan->kind == PLAN_GEMM)
        return layout_of_matrix(&plan->gemm, operand);
    for (unsigned i = 0; i < plan->elementwise.rank; i++)
        add(&v, plan->elementwise.shape[i], &plan->elementwise.strides[operand][i]);
    return v;
}

void cuda_layout_pack(const struct cuda_layout *v, int64_t *ret_strides)
{
    int64_t stride = 1;

    for (unsigned i = v->rank; i-- > 0;) {
        ret_strides[i] = stride;
        stride *= v->shape[i];
    }
}

void cuda_layout_restride(const struct cuda_layout *v, const int64_t *strides)
{
    for (unsigned i = 0; i < v->rank; i++)
        *v->in_plan[i] = strides[i];
}

void cuda_layout_settle(struct plan *plan, unsigned operands)
{
    struct plan_elementwise *p = &plan->elementwise;

    if (plan->kind != PLAN_ELEMENTWISE)
        return;
    p->contiguous = p->rank == 1;
    for (unsigned i = 0; i < operands; i++)
        p->contiguous &= p->strides[i][0] == 1;
}

struct plan_elementwise cuda_layout_copy(const struct cuda_layout *v, const int64_t *source, const int64_t *target)
{
    struct plan_elementwise copy = {.rank = v->rank, .count = v->count};

    memcpy(copy.shape, v->shape, v->rank * sizeof(int64_t));
    memcpy(copy.strides[0], source, v->rank * sizeof(int64_t));
    memcpy(copy.strides[1], target, v->rank * sizeof(int64_t));
    if (copy.rank == 0) {
        copy.rank = 1;
        copy.shape[0] = copy.strides[0][0] = copy.strides[1][0] = 1;
    }
    copy.contiguous = copy.rank == 1 && copy.strides[0][0] == 1 && copy.strides[1][0] == 1;
    return copy;
}
