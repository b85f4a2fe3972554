/* One GPU with all that this backend keeps for it. */
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

/* open() of struct backend, which describes the devices; they belong to `backend`. */
int cuda_gpu_open_all(const struct backend *backend, const struct backend_config *config,
                      const struct backend_host *host, struct backend_device **ret_devices, unsigned max,
                      unsigned *ret_count);

/* activate() of struct backend: makes the context and what belongs to it. */
int cuda_gpu_activate(struct backend_device *base, struct error *e);

/* close() of struct backend. The driver cannot stop a kernel before its process ends, so close() would wait for ever
 * for one that never ends: an executor ends by _exit() instead. */
void cuda_gpu_close(struct backend_device *base);

#endif
