/* A GPU: the device, its kernels and its executor. */
#ifndef KOPS_CUDA_GPU_H
#define KOPS_CUDA_GPU_H

#include "compute/kernels.h"
#include "driver/device.h"
#include "jobs/executor.h"

struct cuda_gpu {
    struct cuda_device device; /* first: the server's view */
    struct cuda_kernels kernels;
    struct cuda_executor executor;
    bool cupti_early; /* as in struct backend_config */
};

static inline struct cuda_gpu *cuda_gpu(struct backend_device *base)
{
    return (struct cuda_gpu *)(void *)base;
}

#endif
