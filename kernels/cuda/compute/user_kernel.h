/* Launches of users' kernels. */
#ifndef KOPS_CUDA_USER_KERNEL_H
#define KOPS_CUDA_USER_KERNEL_H

#include "driver/device.h"
#include "ops/launch.h"

/* The variant of every launch of a user's kernel. */
extern const char cuda_variant_user[];

/* Refuses launches that the driver is too old for. Error: unsupported. Thread: any. */
int cuda_user_check(const struct backend_device_info *info, const struct plan *plan, struct error *e);

/* Fills the launch, and encodes its tensor maps for these addresses. Error: invalid_argument, where the driver takes no
 * such map. Thread: any. */
int cuda_user_launch(const struct plan_kernel *k, const uint64_t *addresses, struct cuda_launch *ret_launch,
                     struct error *e);

/* Enqueues the launch. Thread: loop. */
int cuda_user_issue(const struct cuda_queue *q, const struct plan_kernel *k, struct cuda_launch *l, struct error *e);

#endif
