/* The layout of one operand of a plan: the elements that it really has, and the plan's strides between them. Pure. */
#ifndef KOPS_CUDA_LAYOUT_H
#define KOPS_CUDA_LAYOUT_H

#include <stdint.h>

#include "core/plan.h"

/* Dimensions of size 1 and those that repeat elements (stride 0) are left out; strides do not grow from the outermost
 * dimension to the innermost. */
struct cuda_layout {
    unsigned rank;
    int64_t shape[TENSOR_MAX_RANK], strides[TENSOR_MAX_RANK];
    int64_t *in_plan[TENSOR_MAX_RANK]; /* the place of each stride in the plan */
    uint64_t count;                    /* elements */
};

/* `operand` counts inputs, then outputs. The layout points into the plan. */
struct cuda_layout cuda_layout_of(struct plan *plan, unsigned operand);

/* The strides that the same elements have with nothing between them. */
void cuda_layout_pack(const struct cuda_layout *v, int64_t *ret_strides);

/* Writes new strides to the plan. */
void cuda_layout_restride(const struct cuda_layout *v, const int64_t *strides);

/* After the last restride: finds again whether all operands of the plan are contiguous. */
void cuda_layout_settle(struct plan *plan, unsigned operands);

/* Copying the elements from one layout to the other, as cuda_ops_copy() takes it. */
struct plan_elementwise cuda_layout_copy(const struct cuda_layout *v, const int64_t *source, const int64_t *target);

#endif
