/* The calling thread's CUDA context: where launches here run. */
#ifndef KOPS_CLIENT_HERE_CONTEXT_H
#define KOPS_CLIENT_HERE_CONTEXT_H

#include "cuda/cuda_driver.h"

/* Errors: no_cuda (no driver, after a fork, or no context is current). */
enum kops_code here_context(const struct cuda_driver **ret_driver, cuda_context *ret_context, struct kops_error *e);

/* device_mismatch unless the tensors' device, by its number in this process (-1: any), is the context's. */
enum kops_code here_check_device(int tensors, cuda_device context, struct kops_error *e);

#endif
