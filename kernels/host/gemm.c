#include "gemm.h"

#include <limits.h>

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

struct gemm_problem gemm_problem_at(const struct gemm_call *call, uint64_t index)
{
    const struct plan_gemm *p = &call->plan->gemm;
    const size_t size = dtype_size(call->plan->dtype), out_size = dtype_size(call->plan->out_dtype);
    struct gemm_problem g = {.dtype = call->plan->dtype,
                             .out_dtype = call->plan->out_dtype,
                             .m = p->m,
                             .n = p->n,
                             .k = p->k,
                             .a = {call->pointers[0], p->a.row, p->a.column},
                             .b = {call->pointers[1], p->b.row, p->b.column},
                             .out = {call->pointers[2], p->out.row, p->out.column},
                             .alpha = p->alpha,
                             .beta = p->beta};

    for (unsigned d = p->batch_rank; d-- > 0;) {
        uint64_t i = index % (uint64_t)p->batch_shape[d];

        index /= (uint64_t)p->batch_shape[d];
        g.a.at += i * (uint64_t)p->a.batch[d] * size;
        g.b.at += i * (uint64_t)p->b.batch[d] * size;
        g.out.at += i * (uint64_t)p->out.batch[d] * out_size;
    }
    if (g.out.column != 1 && g.n > 1 && (g.out.row == 1 || g.m == 1)) {
        struct gemm_problem t = g;

        t.m = g.n;
        t.n = g.m;
        t.a = (struct gemm_matrix){g.b.at, g.b.column, g.b.row};
        t.b = (struct gemm_matrix){g.a.at, g.a.column, g.a.row};
        t.out = (struct gemm_matrix){g.out.at, g.out.column, g.out.row};
        return t;
    }
    return g;
}

bool gemm_as_cblas(const struct gemm_matrix *x, int64_t rows, int64_t columns, struct cblas_matrix *ret)
{
    int64_t ld;

    if ((x->column == 1 || columns <= 1) && (x->row >= most(1, columns) || rows <= 1)) {
        ret->transposed = false;
        ld = rows <= 1 ? most(1, columns) : x->row;
    } else if ((x->row == 1 || rows <= 1) && (x->column >= most(1, rows) || columns <= 1)) {
        ret->transposed = true;
        ld = columns <= 1 ? most(1, rows) : x->column;
    } else {
        return false;
    }
    ret->at = x->at;
    ret->ld = (int)ld;
    return ld <= INT_MAX;
}

static void scale_item(void *context, unsigned thread, size_t item)
{
    static const double zeros[256];
    const struct gemm_call *call = context;
    struct gemm_problem g = gemm_problem_at(call, item);
    const size_t size = dtype_size(g.out_dtype), width = sizeof(zeros) / sizeof(zeros[0]);

    (void)thread;
    for (size_t c = 0; c < (size_t)g.n; c += width)
        call->kernels->store[g.out_dtype](g.out.at + (ptrdiff_t)c * g.out.column * (ptrdiff_t)size, g.out.row,
                                          g.out.column, zeros, 0, (size_t)g.m,
                                          (size_t)g.n - c < width ? (size_t)g.n - c : width, 0, g.beta);
}

void gemm_scale(const struct gemm_call *call)
{
    pool_run(call->pool, call->plan->gemm.batch_count, scale_item, (void *)call);
}

/* Multiplications and additions of the whole plan. */
static double flops_of(const struct plan *plan)
{
    const struct plan_gemm *p = &plan->gemm;

    return 2 * (double)p->m * (double)p->n * (double)p->k * (double)p->batch_count;
}

double gemm_cost_ns(const struct plan *plan)
{
    const struct plan_gemm *p = &plan->gemm;
    const double bytes = ((double)p->m * (double)p->k + (double)p->k * (double)p->n) * (double)dtype_size(plan->dtype) +
                         (double)p->m * (double)p->n * (double)dtype_size(plan->out_dtype);

    const double each = p->has_scales                                                   ? 1
                        : !p->has_bias                                                  ? 0
                        : p->activation == PLAN_GELU || p->activation == PLAN_GELU_TANH ? 10
                                                                                        : 1;

    return flops_of(plan) / 40 + bytes * (double)p->batch_count / 10 + 200 * (double)p->batch_count +
           each * (double)p->m * (double)p->n * (double)p->batch_count;
}
