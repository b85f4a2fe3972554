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
    bool cupti_early;             /* as in struct backend_config */
    bool abandoned;               /* work on it may never end: the driver is left alone from now on */
    struct cuda_gpu *left_behind; /* by close(): the next one of a list that is never read */
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

/* close() and abandon() of struct backend.
 *
 * The driver cannot stop a kernel before the process ends, and calls that wait for the device, such as freeing memory
 * or unloading modules, would wait for a kernel that never ends. So from cuda_gpu_abandon() on the driver is left
 * alone: every function of the backend fails with device_lost, and the device's resources stay until the process ends.
 * The process should end by _exit(): the driver's own exit handlers wait, too. */
void cuda_gpu_close(struct backend_device *base);
void cuda_gpu_abandon(struct backend_device *base, const struct error *why);

#endif
