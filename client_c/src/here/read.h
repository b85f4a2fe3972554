/* What launches here share: tensors of this process as the rules of launches (daemon/core) take them, the errors of
 * these rules, and the calling thread's CUDA context, where launches run. */
#ifndef KOPS_CLIENT_HERE_READ_H
#define KOPS_CLIENT_HERE_READ_H

#include <kops/kops.h>

#include "core/tensor.h"
#include "cuda/cuda_driver.h"
#include "util/error.h"

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

/* The calling thread's CUDA context, where launches here run. Errors: no_cuda (no driver, after a fork, or no context
 * is current). */
enum kops_code here_context(const struct cuda_driver **ret_driver, cuda_context *ret_context, struct kops_error *e);

/* device_mismatch unless the tensors' device, by its number in this process (-1: any), is the context's. */
enum kops_code here_check_device(int tensors, cuda_device context, struct kops_error *e);

/* An error of the rules as one of this library. `to` may be NULL. Returns the code. */
enum kops_code here_error(const struct error *from, struct kops_error *to);

#endif
