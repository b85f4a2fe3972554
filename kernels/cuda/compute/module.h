/* Modules: binaries of users' kernels, loaded on one device, and the functions in them. The server owns them and keeps
 * them while anything may launch them. Thread: any. */
#ifndef KOPS_CUDA_MODULE_H
#define KOPS_CUDA_MODULE_H

#include "driver/device.h"

/* code_load() and code_unload() of struct backend. */
int cuda_module_load(struct backend_device *base, uint64_t domain, const void *binary, size_t size,
                     struct backend_code **ret_code, struct error *e);
void cuda_module_unload(struct backend_device *base, struct backend_code *code);

/* code_function() of struct backend; `limits` are the device's. */
int cuda_module_function(struct cuda_device *d, const struct kernel_limits *limits, struct backend_code *code,
                         const char *lowered, struct backend_function *ret_function, struct error *e);

#endif
