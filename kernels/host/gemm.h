/* Matrix products over any plan: by a BLAS or oneDNN, which are loaded at run time, or by our own blocked kernel. Each
 * takes every stride and batch. Thread: the pool's caller; scratch is the pool's. */
#ifndef KOPS_HOST_GEMM_H
#define KOPS_HOST_GEMM_H

#include "blas.h"
#include "core/plan.h"
#include "kernels.h"
#include "onednn.h"
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

/* `micro` NULL: the kernels' own, for the type that is computed in. Errors: out_of_memory. */
int gemm_blocked(const struct gemm_call *call, const struct kernels_gemm *micro, struct error *e);
/* `blas` has been loaded. Errors: out_of_memory. */
int gemm_blas(const struct gemm_call *call, struct blas *blas, struct error *e);
/* `library` has been loaded. Not for f64. 1: the library refuses, as where the system lets no program make code of its
 * own; out is as it was. Errors: out_of_memory. */
int gemm_onednn(const struct gemm_call *call, const struct onednn *library, struct error *e);

/* out = beta·out, for products without terms. */
void gemm_scale(const struct gemm_call *call);

/* The batch's index-th product. Where out runs along its columns both sides are transposed, so that out.column is 1
 * if either of out's strides is. */
struct gemm_problem gemm_problem_at(const struct gemm_call *call, uint64_t index);

/* A matrix as CBLAS and oneDNN want it in row-major order. */
struct cblas_matrix {
    void *at;
    bool transposed;
    int ld;
};

/* Whether a matrix can be used in place by a library that has its dtype. */
bool gemm_as_cblas(const struct gemm_matrix *x, int64_t rows, int64_t columns, struct cblas_matrix *ret);

/* About how long one thread would take, in ns. */
double gemm_cost_ns(const struct plan *plan);

#endif
