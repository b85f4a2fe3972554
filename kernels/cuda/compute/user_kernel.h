/* Users' kernels: modules, the functions in them, and their launches. The server owns modules and keeps them while
 * anything may launch them. Thread: any. */
#ifndef KOPS_CUDA_USER_KERNEL_H
#define KOPS_CUDA_USER_KERNEL_H

#include "driver/device.h"
#include "ops/launch.h"

extern const char cuda_variant_user[];

/* code_load() and code_unload() of struct backend. */
int cuda_module_load(struct backend_device *base, uint64_t domain, const void *binary, size_t size,
                     struct backend_code **ret_code, struct error *e);
void cuda_module_unload(struct backend_device *base, struct backend_code *code);

/* code_function() of struct backend; `limits` are the device's. */
int cuda_module_function(struct cuda_device *d, const struct kernel_limits *limits, struct backend_code *code,
                         const char *lowered, struct backend_function *ret_function, struct error *e);

/* Error: unsupported, the driver is too old for the launch. */
int cuda_user_check(const struct backend_device_info *info, const struct plan *plan, struct error *e);

/* Fills the launch, and encodes its tensor maps for these addresses. Errors: invalid_argument, the driver refuses a
 * map; out_of_range, a cooperative kernel's blocks do not fit on the device together. The context is current. */
int cuda_user_prepare(struct cuda_device *d, const struct plan_kernel *k, const uint64_t *addresses,
                      struct cuda_launch *ret_launch, struct error *e);

/* `early`: the kernel may begin before the end of its predecessor on the stream. */
int cuda_user_issue(const struct cuda_queue *q, const struct plan_kernel *k, bool early, struct cuda_launch *l,
                    struct error *e);

#endif
