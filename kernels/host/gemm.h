/* Matrix products over any plan. Out is cut into tiles, each computed by one thread with the function `multiply` of a
 * BLAS, of oneDNN, or our own. Operands that the function accepts are used in place; others are copied by blocks, so
 * scratch memory is bounded. Sums of f16, bf16 and f8 are in f32 and rounded once. Thread: the pool's caller; scratch
 * memory is the pool's. */
#ifndef KOPS_HOST_GEMM_H
#define KOPS_HOST_GEMM_H

#include "core/plan.h"
#include "kernels.h"
#include "pool.h"

/* A block of a matrix in row-major order, for CBLAS and oneDNN. */
struct gemm_block {
    void *at;
    bool transposed;
    int ld;
};

/* out[m×n] = alpha·a[m×k]·b[k×n] + beta·out. `out` is not transposed. All have `dtype`, except that out is f32 for
 * bf16. Returns 0, or an error before anything was written. */
typedef int gemm_multiply(const void *library, enum dtype dtype, int64_t m, int64_t n, int64_t k, double alpha,
                          const struct gemm_block *a, const struct gemm_block *b, double beta,
                          const struct gemm_block *out);

/* A way to multiply on the calling thread. */
struct gemm_way {
    const void *library;
    gemm_multiply *multiply;
    unsigned in_place; /* bits of dtypes whose matrices are used in place. If 0, rows of blocks are contiguous, and
                          alpha is 1 */
};

/* A plan, its operands' first elements, and the kernels and pool that compute it. */
struct gemm_call {
    const struct plan *plan;
    unsigned char *const *pointers;
    const struct kernels *kernels;
    struct pool *pool;
};

/* Computes the product. Returns 1 if the library refuses, for example where the system forbids generated code; out is
 * then unchanged. Errors: out_of_memory. */
int gemm_compute(const struct gemm_call *call, const struct gemm_way *way, struct error *e);

/* Returns the way without a library. */
struct gemm_way gemm_own(const struct kernels *kernels);

/* Estimates the time of one thread in ns. */
double gemm_cost_ns(const struct plan *plan);

#endif
