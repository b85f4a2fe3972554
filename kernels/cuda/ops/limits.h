/* Limits of launches on a device, computed from its attributes, for the daemon and for clients that launch in their own
 * context. Needs neither the driver nor its headers. Thread: any. */
#ifndef KOPS_CUDA_OPS_LIMITS_H
#define KOPS_CUDA_OPS_LIMITS_H

#include <stdbool.h>

#include "core/kernel.h"

enum {
    CLUSTER_PORTABLE = 8, /* blocks of a cluster that every device with clusters allows */
    CLUSTER_LARGE = 16    /* blocks of a cluster on devices that allow kernels more */
};

/* Returns the value of a CUdevice_attribute; negative or 0: the device has none. */
typedef int cuda_limits_attribute(const void *device, int which);

/* Whether the driver has these functions. */
struct cuda_limits_driver {
    bool attributes; /* launch attributes, such as clusters */
    bool maps, occupancy;
};

/* Fills in the limits that depend on device and driver alone. */
void cuda_limits_of(cuda_limits_attribute *attribute, const void *device, struct cuda_limits_driver driver,
                    struct kernel_limits *ret);

#endif
