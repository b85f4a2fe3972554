/* Parts that launches here share: tensors of this process in the form that the rules of launches (daemon/core) take,
 * errors of these rules, and the calling thread's CUDA context, where launches run. */
#ifndef KOPS_CLIENT_HERE_READ_H
#define KOPS_CLIENT_HERE_READ_H

#include <kops/kops.h>

#include "core/tensor.h"
#include "cuda/cuda_driver.h"
#include "util/error.h"

/* A tensor in this process's memory. */
struct here_tensor {
    cuda_pointer pointer;
    const int64_t *shape, *strides; /* elements; strides NULL: row-major and dense */
    unsigned rank;
    enum kops_dtype dtype;
    uint64_t bytes; /* usable bytes from `pointer` on; 0: unknown, the caller vouches for them */
};

/* Checks the tensor and converts it, with its address as offset. `key` names it in errors. Errors: limit_exceeded,
 * out_of_range, misaligned, out_of_bounds. */
int here_read_tensor(const struct here_tensor *from, const char *key, struct tensor *ret, struct error *e);

/* Tells overlap_check() that two operands lie in one memory: all memory of this process is one, and a tensor's offset
 * is its address. */
bool here_one_memory(const void *context, unsigned a, unsigned b);

/* The calling thread's CUDA context, where launches here run. Errors: no_cuda (no driver, after a fork, or no context
 * is current). */
enum kops_code here_context(const struct cuda_driver **ret_driver, cuda_context *ret_context, struct kops_error *e);

/* Errors: device_mismatch, unless the tensors' device (by its number in this process; -1: any) is the context's. */
enum kops_code here_check_device(int tensors, cuda_device context, struct kops_error *e);

/* Converts an error of the rules into one of this library. `to` may be NULL. Returns the code. */
enum kops_code here_error(const struct error *from, struct kops_error *to);

#endif
