/* Asks the driver for the limits of launches. */
#include "limits.h"

static int attribute(const void *device, int which)
{
    return cuda_device_attribute(device, (CUdevice_attribute)which);
}

void cuda_limits_find(const struct cuda_device *d, struct kernel_limits *ret_limits)
{
    const struct cuda_limits_driver driver = {.attributes = CUDA_HAS(LaunchKernelEx),
                                              .occupancy = CUDA_HAS(OccupancyMaxActiveBlocksPerMultiprocessor) &&
                                                           CUDA_HAS(OccupancyMaxActiveClusters),
                                              .maps = cuda.TensorMapEncodeTiled != NULL};

    cuda_limits_of(attribute, d, driver, ret_limits);
}
