/* Tensor maps of the stand-in: cuTensorMapEncodeTiled() writes what it was given, and kernels read it. */
#ifndef KOPS_STANDIN_MAPS_H
#define KOPS_STANDIN_MAPS_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/cuda/ops/params.h"

/* The product that a kernel of that symbol computes by its maps; false where they are none, or of another shape than
 * the rest of the parameters says. */
bool maps_read(const struct cuda_ops_gemm_mapped *p, const char *symbol, struct cuda_ops_gemm *ret);

enum { MAPS_RANK = 5 };

/* The tensor that a map of a user's kernel describes; dimensions from the innermost, those that it has not are 0. */
struct maps_tensor {
    uint64_t address, count, bytes; /* elements; from the first byte to the last */
    unsigned size;                  /* of an element */
    uint64_t extents[MAPS_RANK], strides[MAPS_RANK];
};

/* False: these 128 bytes are no map. */
bool maps_find(const void *map, struct maps_tensor *ret);

/* Where the next map from `at` on lies among parameters; 0: there is none. */
size_t maps_next(const unsigned char *params, size_t at, size_t size);

/* The address of the i-th element, in row-major order. */
uint64_t maps_element(const struct maps_tensor *t, uint64_t i);

#endif
