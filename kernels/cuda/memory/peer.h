/* One GPU's use of another's memory. */
#ifndef KOPS_CUDA_PEER_H
#define KOPS_CUDA_PEER_H

#include "mapping.h"

/* can_access() of struct backend. Thread: loop. */
bool cuda_can_access(struct backend_device *device, struct backend_device *owner);

/* Whether jobs of `d` may use the memory now. A memfd belongs to no device: staging and registration give access to
 * it. Thread: any. */
static inline bool cuda_peer_has_access(const struct cuda_device *d, struct backend_memory *memory)
{
    return !memory || !memory->device || memory->device == &d->base ||
           (atomic_load_explicit(&cuda_memory(memory)->peers, memory_order_acquire) & 1U << d->base.index);
}

/* Gives `d` access to the memory, and leaves `d`'s context current. Errors: device_mismatch, device_lost. Thread: any;
 * may block. */
int cuda_peer_allow(struct cuda_device *d, struct backend_memory *memory, struct error *e);

/* The memory's address for jobs of `d`, which has access. Thread: any. */
uint64_t cuda_peer_address(const struct cuda_device *d, struct backend_memory *memory);

/* Takes the access of other devices back, before the memory is closed. Leaves any context current. Thread: any. */
void cuda_peer_forget(struct cuda_memory *m);

/* cuMemSetAccess for one device. Thread: any. */
CUresult cuda_peer_set_access(const struct cuda_device *d, CUdeviceptr address, uint64_t size, bool writable);

/* Gives the memory's own device, and every device that was allowed before, access to `size` bytes that were just mapped
 * behind the memory's last byte, and counts them as part of the memory. Thread: any. */
int cuda_peer_extend(struct cuda_memory *m, CUdeviceptr address, uint64_t size, struct error *e);

#endif
