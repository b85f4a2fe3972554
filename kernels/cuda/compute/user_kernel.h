/* Launches of users' kernels. */
#ifndef KOPS_CUDA_USER_KERNEL_H
#define KOPS_CUDA_USER_KERNEL_H

#include "driver/device.h"
#include "ops/launch.h"

/* The variant of every launch of a user's kernel. */
extern const char cuda_variant_user[];

/* Refuses launches that the driver is too old for. Error: unsupported. Thread: any. */
int cuda_user_check(const struct backend_device_info *info, const struct plan *plan, struct error *e);

/* Fills the launch, and encodes its tensor maps for these addresses. Errors: invalid_argument, where the driver takes
 * no such map; out_of_range, where a cooperative kernel's blocks do not run at one time. Thread: any, with the device's
 * context. */
int cuda_user_prepare(struct cuda_device *d, const struct plan_kernel *k, const uint64_t *addresses,
                      struct cuda_launch *ret_launch, struct error *e);

/* Enqueues the launch. `early`: it may begin before the kernel right before it on the stream has ended. Thread: loop.
 */
int cuda_user_issue(const struct cuda_queue *q, const struct plan_kernel *k, bool early, struct cuda_launch *l,
                    struct error *e);

#endif
