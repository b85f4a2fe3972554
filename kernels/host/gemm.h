/* Matrix products over any plan: by a BLAS that is loaded at run time, or by our own blocked kernel. Both take every
 * dtype, stride and batch. Thread: the pool's caller; scratch is the pool's. */
#ifndef KOPS_HOST_GEMM_H
#define KOPS_HOST_GEMM_H

#include "blas.h"
#include "core/plan.h"
#include "kernels.h"
#include "pool.h"

/* One matrix product: out[m×n] = alpha·a[m×k]·b[k×n] + beta·out. Strides count elements. */
struct gemm_matrix {
    unsigned char *at;
    ptrdiff_t row, column;
};

struct gemm_problem {
    enum dtype dtype, out_dtype;
    int64_t m, n, k;
    struct gemm_matrix a, b, out;
    double alpha, beta;
};

/* A plan, its operands' first elements, and the means to compute it. */
struct gemm_call {
    const struct plan *plan;
    unsigned char *const *pointers;
    const struct kernels *kernels;
    struct pool *pool;
};

/* Errors: out_of_memory. */
int gemm_blocked(const struct gemm_call *call, struct error *e);
/* `blas` has been loaded. Errors: out_of_memory. */
int gemm_blas(const struct gemm_call *call, struct blas *blas, struct error *e);

/* out = beta·out, for products without terms. */
void gemm_scale(const struct gemm_call *call);

/* The batch's index-th product. Where out runs along its columns both sides are transposed, so that out.column is 1
 * if either of out's strides is. */
struct gemm_problem gemm_problem_at(const struct gemm_call *call, uint64_t index);

/* About how long one thread would take, in ns. */
double gemm_cost_ns(const struct plan *plan);

#endif
