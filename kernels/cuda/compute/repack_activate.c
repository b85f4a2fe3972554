/* "activated": the library's product with the bias, and gelu over it in place, for which the library has no epilogue.
 * Products of f32 and f64 lose nothing by it: what is stored between both is of the type of the sums. */
#include "repack_sketch.h"

#include <stdlib.h>

#include "blaslt/blaslt.h"

/* Below, the second launch costs more than the library's product gains. */
static const double LEAST_WORK = 0x1p26;

static struct plan product_of(const struct plan *plan)
{
    struct plan product = *plan;

    product.gemm.activation = PLAN_NONE;
    return product;
}

int repack_check_activated(const struct plan *plan, struct error *e)
{
    const bool fits = plan->kind == PLAN_GEMM && !plan_is_empty(plan) && plan->gemm.has_bias &&
                      plan->gemm.activation == PLAN_GELU && plan->dtype == plan->out_dtype &&
                      (plan->dtype == DTYPE_F32 || plan->dtype == DTYPE_F64);
    struct plan product;

    if (fits) {
        product = product_of(plan);
        return blaslt_check(&product, e);
    }
    error_set(e, ERROR_INVALID_ARGUMENT,
              "variant \"%s\" is for a bias and activation \"gelu\" with f32 or f64; leave the variant out",
              repack_activated);
    return error_detail_text(e, "variant", repack_activated);
}

bool repack_should_activate(const struct plan *plan)
{
    const struct plan_gemm *g = &plan->gemm;
    struct error ignored;

    return 2.0 * (double)g->m * (double)g->n * (double)g->k * (double)g->batch_count >= LEAST_WORK && g->m > 16 &&
           g->n > 16 && repack_check_activated(plan, &ignored) == 0;
}

static void add_dimension(struct plan_elementwise *p, int64_t size, int64_t stride)
{
    if (size == 1)
        return;
    p->shape[p->rank] = size;
    p->strides[0][p->rank] = p->strides[1][p->rank] = stride;
    p->rank++;
}

/* All of out. The library's results are never broadcast, and neighbours that lie behind each other are one dimension:
 * so what has no gaps is a vector. */
static struct plan_elementwise all_of_out(const struct plan_gemm *g)
{
    const bool by_rows = g->out.column == 1 || g->n == 1;
    struct plan_elementwise p = {.count = (uint64_t)g->m * (uint64_t)g->n * g->batch_count};
    unsigned kept = 0;

    for (unsigned d = 0; d < g->batch_rank; d++)
        add_dimension(&p, g->batch_shape[d], g->out.batch[d]);
    add_dimension(&p, by_rows ? g->m : g->n, by_rows ? g->out.row : g->out.column);
    add_dimension(&p, by_rows ? g->n : g->m, by_rows ? g->out.column : g->out.row);
    if (p.rank == 0) {
        p.rank = 1;
        p.shape[0] = p.strides[0][0] = p.strides[1][0] = 1;
    }
    for (unsigned d = 1; d < p.rank; d++) {
        if (p.strides[0][kept] == p.shape[d] * p.strides[0][d]) {
            p.shape[kept] *= p.shape[d];
        } else {
            kept++;
            p.shape[kept] = p.shape[d];
        }
        p.strides[0][kept] = p.strides[1][kept] = p.strides[0][d];
    }
    p.rank = kept + 1;
    p.contiguous = p.rank == 1 && p.strides[0][0] == 1;
    return p;
}

int repack_sketch_activated(const struct plan *plan, const uint64_t *addresses, struct repack_sketch *ret_sketch,
                            struct error *e)
{
    struct repack_action *actions;

    if (repack_check_activated(plan, e) < 0)
        return -1;
    actions = calloc(2, sizeof(*actions));
    if (!actions)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the parts of a gemm");
    actions[0].kind = REPACK_PRODUCT;
    actions[0].product.plan = product_of(plan);
    for (unsigned i = 0; i < PLAN_MAX_OPERANDS; i++)
        actions[0].product.addresses[i] = addresses[i];
    actions[1].kind = REPACK_GELU;
    actions[1].gelu.all = all_of_out(&plan->gemm);
    actions[1].gelu.dtype = plan->dtype;
    actions[1].gelu.address = addresses[plan_gemm_out(&plan->gemm)];
    *ret_sketch = (struct repack_sketch){.variant = repack_activated, .n = 2, .actions = actions};
    return 0;
}
