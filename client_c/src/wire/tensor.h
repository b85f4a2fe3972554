/* A tensor as it travels. */
#ifndef KOPS_CLIENT_TENSOR_H
#define KOPS_CLIENT_TENSOR_H

#include <kops/kops.h>

/* An operand by the id that `register` gave. Nothing is copied: the pointers are read during the call. */
struct native_tensor {
    uint64_t buffer; /* 0: none, for a tensor without elements */
    uint64_t offset; /* bytes from the start of the registration */
    const int64_t *shape;
    const int64_t *strides; /* elements; NULL: contiguous */
    unsigned rank;
    enum kops_dtype dtype;
};

#endif
