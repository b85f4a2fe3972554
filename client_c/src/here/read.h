/* Tensors of this process, read as the rules of launches (daemon/core) take them. */
#ifndef KOPS_CLIENT_HERE_READ_H
#define KOPS_CLIENT_HERE_READ_H

#include <kops/kops.h>

#include "core/tensor.h"
#include "cuda/cuda_driver.h"

/* A tensor in memory of this process's. */
struct here_tensor {
    cuda_pointer pointer;
    const int64_t *shape, *strides; /* elements; strides NULL: row-major and dense */
    unsigned rank;
    enum kops_dtype dtype;
    uint64_t bytes; /* that may be used from there on; 0: not told, the caller answers for it */
};

/* Measures it; the address is its offset. `key` names it in errors. Errors: limit_exceeded, out_of_range, misaligned,
 * out_of_bounds. */
int here_read_tensor(const struct here_tensor *from, const char *key, struct tensor *ret, struct error *e);

/* Whether two operands lie in one memory, for overlap_check(): all memory of this process is one, and tensors lie where
 * their addresses say. */
bool here_one_memory(const void *context, unsigned a, unsigned b);

#endif
