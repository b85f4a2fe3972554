/* Kernels of users that this driver can compute, by name: what the code in an image says is not looked at. */
#ifndef KOPS_STANDIN_USER_KERNELS_H
#define KOPS_STANDIN_USER_KERNELS_H

#include <cuda.h>
#include <stdbool.h>

struct context;
struct compiled_entry;
struct op;
struct user_kernel;

/* By the name in an image, plain or mangled, where the parameters are as large as they must be; or NULL. It lives as
 * long as the process. */
const struct user_kernel *user_kernel_find(const struct compiled_entry *kernel);
const char *user_kernel_name(const struct user_kernel *kernel);
/* What a launch will touch. */
void user_kernel_uses(const struct user_kernel *kernel, const CUDA_KERNEL_NODE_PARAMS *geometry, const void *params,
                      struct op *op);
/* CUDA_SUCCESS, or the fault that it ends with. Returns early, whatever it does, once the context is broken. */
CUresult user_kernel_run(const struct user_kernel *kernel, const CUDA_KERNEL_NODE_PARAMS *geometry, const void *params,
                         const struct context *context);

#endif
