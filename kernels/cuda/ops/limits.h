/* Limits of launches on a device, from its attributes: one rule for the daemon and for clients that launch in a
 * context of their own. Needs neither the driver nor its headers. Thread: any. */
#ifndef KOPS_CUDA_OPS_LIMITS_H
#define KOPS_CUDA_OPS_LIMITS_H

#include <stdbool.h>

#include "core/kernel.h"

enum {
    CLUSTER_PORTABLE = 8, /* blocks that every device with clusters takes */
    CLUSTER_LARGE = 16    /* where kernels may ask for more than that */
};

/* The value of a CUdevice_attribute of the device that `device` stands for; negative or 0 where it has none. */
typedef int cuda_limits_attribute(const void *device, int which);

/* Functions that the driver has. */
struct cuda_limits_driver {
    bool attributes; /* of launches: clusters and the like */
    bool maps, occupancy;
};

/* Fills what depends on the device and its driver alone. */
void cuda_limits_of(cuda_limits_attribute *attribute, const void *device, struct cuda_limits_driver driver,
                    struct kernel_limits *ret);

#endif
