/* Device memory in the order of a device queue: a pool of the daemon's own gives it out. Thread: any. */
#ifndef KOPS_CUDA_SCRATCH_H
#define KOPS_CUDA_SCRATCH_H

#include "device.h"

/* Sets device->has_pools. */
int cuda_scratch_describe(struct cuda_device *d, struct error *e);

/* Makes device->pool where the device has pools. The context is current. */
int cuda_scratch_open(struct cuda_device *d, struct error *e);
void cuda_scratch_close(struct cuda_device *d);

static inline bool cuda_scratch_is_there(const struct cuda_device *d)
{
    return d->has_pools;
}

/* Memory that work behind this call on the same stream may use. cuda_scratch_is_there(). */
int cuda_scratch_alloc(struct cuda_device *d, CUstream stream, uint64_t bytes, CUdeviceptr *ret_address,
                       struct error *e);

/* Frees it behind the work that is on the stream now. 0 is allowed. */
void cuda_scratch_free(const struct cuda_device *d, CUstream stream, CUdeviceptr address);

/* The same of the device's share for copies of operands, which is bounded. Error: out_of_memory, where the bound or
 * the device's memory is reached. */
int cuda_scratch_take(struct cuda_device *d, CUstream stream, uint64_t bytes, CUdeviceptr *ret_address,
                      struct error *e);
/* Address 0 is allowed. */
void cuda_scratch_give(struct cuda_device *d, CUstream stream, CUdeviceptr address, uint64_t bytes);

#endif
