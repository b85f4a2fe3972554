/* Limits of launches of users' kernels on one device. */
#ifndef KOPS_CUDA_LIMITS_H
#define KOPS_CUDA_LIMITS_H

#include "driver/device.h"
#include "ops/limits.h"

/* Asks the driver, once for each device. */
void cuda_limits_find(const struct cuda_device *d, struct kernel_limits *ret_limits);

#endif
