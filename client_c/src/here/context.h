/* The calling thread's CUDA context: where launches here run. */
#ifndef KOPS_CLIENT_HERE_CONTEXT_H
#define KOPS_CLIENT_HERE_CONTEXT_H

#include "cuda/cuda_driver.h"

/* Errors: no_cuda (no driver, after a fork, or no context is current). */
enum kops_code here_context(const struct cuda_driver **ret_driver, cuda_context *ret_context, struct kops_error *e);

/* device_mismatch unless the tensors' device, by ordinal (-1: any) and by UUID (NULL: any), is the context's, whose
 * UUID may be "" where it is not known. */
enum kops_code here_check_device(int tensors, const char *tensors_uuid, cuda_device context, const char *context_uuid,
                                 struct kops_error *e);

#endif
