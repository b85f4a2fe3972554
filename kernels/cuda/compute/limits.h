/* Limits of launches of users' kernels on one device. */
#ifndef KOPS_CUDA_LIMITS_H
#define KOPS_CUDA_LIMITS_H

#include "core/kernel.h"
#include "driver/device.h"

enum {
    CLUSTER_PORTABLE = 8, /* blocks that every device with clusters takes */
    CLUSTER_LARGE = 16    /* where kernels may ask for more than that */
};

/* Asks the driver, once for each device. */
void cuda_limits_find(const struct cuda_device *d, struct kernel_limits *ret_limits);

#endif
