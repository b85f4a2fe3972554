/* One operand of a plan as the elements that it really has, and the plan's strides that say where they are. Pure. */
#ifndef KOPS_CUDA_VIEW_H
#define KOPS_CUDA_VIEW_H

#include <stdint.h>

#include "core/plan.h"

/* Dimensions of size 1 and those that repeat elements (stride 0) are left out; strides do not grow from the outermost
 * dimension to the innermost. */
struct cuda_view {
    unsigned rank;
    int64_t shape[TENSOR_MAX_RANK], strides[TENSOR_MAX_RANK];
    int64_t *homes[TENSOR_MAX_RANK]; /* the stride of each dimension in the plan */
    uint64_t count;                  /* elements */
};

/* `operand` counts inputs, then outputs. The view points into the plan. */
struct cuda_view cuda_view_of(struct plan *plan, unsigned operand);

/* The strides that the same elements have with nothing between them. */
void cuda_view_pack(const struct cuda_view *v, int64_t *ret_strides);

/* Writes new strides to the plan. */
void cuda_view_restride(const struct cuda_view *v, const int64_t *strides);

/* After the last restride: the plan says again whether all of its operands are contiguous. */
void cuda_view_settle(struct plan *plan, unsigned operands);

/* Copying the elements from one layout to the other, as cuda_ops_copy() takes it. */
struct plan_elementwise cuda_view_copy(const struct cuda_view *v, const int64_t *source, const int64_t *target);

#endif
