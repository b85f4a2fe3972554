/* Matrix products over any plan: out is cut into tiles, which threads take independently. A tile is computed by one
 * thread with one function, `multiply`: a BLAS's, oneDNN's or our own. Operands that the function takes as they are,
 * are used where they lie; others are copied by blocks, so scratch is bounded. Sums of f16, bf16 and f8 are made in f32
 * and rounded once. Thread: the pool's caller; scratch is the pool's. */
#ifndef KOPS_HOST_GEMM_H
#define KOPS_HOST_GEMM_H

#include "core/plan.h"
#include "kernels.h"
#include "pool.h"

/* A block of a matrix as CBLAS and oneDNN want it in row-major order. */
struct gemm_block {
    void *at;
    bool transposed;
    int ld;
};

/* out[m×n] = alpha·a[m×k]·b[k×n] + beta·out. `out` is not transposed. All are of `dtype`, but for bf16, where out is of
 * f32. 0, or an error before anything was written. */
typedef int gemm_multiply(const void *library, enum dtype dtype, int64_t m, int64_t n, int64_t k, double alpha,
                          const struct gemm_block *a, const struct gemm_block *b, double beta,
                          const struct gemm_block *out);

/* A way to multiply on the calling thread. */
struct gemm_way {
    const void *library;
    gemm_multiply *multiply;
    unsigned in_place; /* the dtypes, as bits, whose matrices are used where they lie. Without any, blocks are rows that
                          follow each other, alpha is 1 */
};

/* A plan, its operands' first elements, and the means to compute it. */
struct gemm_call {
    const struct plan *plan;
    unsigned char *const *pointers;
    const struct kernels *kernels;
    struct pool *pool;
};

/* 1: the library refuses, as where the system lets no program make code of its own; out is as it was. Errors:
 * out_of_memory. */
int gemm_compute(const struct gemm_call *call, const struct gemm_way *way, struct error *e);

/* The way without a library. */
struct gemm_way gemm_own(const struct kernels *kernels);

/* About how long one thread would take, in ns. */
double gemm_cost_ns(const struct plan *plan);

#endif
