/* Asks the driver for the limits of launches. */
#include "limits.h"

/* A device never has a negative limit. */
static unsigned attribute(const struct cuda_device *d, CUdevice_attribute which)
{
    int value = cuda_device_attribute(d, which);

    return value > 0 ? (unsigned)value : 0;
}

/* Generations 9 and 10 take 16 blocks where a kernel allows it, others that have clusters 8. */
static unsigned find_max_cluster(const struct cuda_device *d)
{
    unsigned major = attribute(d, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);

    if (!CUDA_HAS(LaunchKernelEx) || !attribute(d, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH))
        return 0;
    return major == 9 || major == 10 ? CLUSTER_LARGE : CLUSTER_PORTABLE;
}

void cuda_limits_find(const struct cuda_device *d, struct kernel_limits *ret_limits)
{
    static const CUdevice_attribute block[] = {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
                                               CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z};
    static const CUdevice_attribute grid[] = {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
                                              CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z};

    *ret_limits = (struct kernel_limits){
        .max_threads = attribute(d, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        .max_shared = attribute(d, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        .multiprocessors = d->base.info.compute_units,
        .max_cluster = find_max_cluster(d),
    };
    for (unsigned i = 0; i < 3; i++) {
        ret_limits->max_block[i] = attribute(d, block[i]);
        ret_limits->max_grid[i] = attribute(d, grid[i]);
    }
}
