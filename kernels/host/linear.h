/* Products with a bias and an activation over any plan: a product without them, in the type that is computed in, and
 * one pass over it. Thread: the pool's caller. */
#ifndef KOPS_HOST_LINEAR_H
#define KOPS_HOST_LINEAR_H

#include "core/plan.h"
#include "kernels.h"
#include "pool.h"

/* Computes a plan without a bias, by whichever library or kernel; `pointers` are of its a, b and out. Errors: any. */
typedef int linear_product(void *context, const struct plan *plan, unsigned char *const *pointers, struct error *e);

/* A plan with a bias, its operands' first elements, and the means to compute it. */
struct linear_call {
    const struct plan *plan;
    unsigned char *const *pointers;
    const struct kernels *kernels;
    struct pool *pool;
    linear_product *product;
    void *context;
};

/* Elements from a batch's first matrix to the one with that number. */
uint64_t linear_batch_offset(const struct plan_gemm *g, const struct plan_matrix *x, uint64_t index);

/* Errors: out_of_memory, and those of `product`. */
int linear_run(const struct linear_call *call, struct error *e);

#endif
