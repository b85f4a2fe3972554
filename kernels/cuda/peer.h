/* One GPU's use of another's memory: whether the machine can, and doing what it takes. */
#ifndef KOPS_CUDA_PEER_H
#define KOPS_CUDA_PEER_H

#include "device.h"
#include "memory.h"

/* loop. backend.h's can_access(). */
bool cuda_can_access(struct backend_device *device, struct backend_device *owner);

/* any. Whether jobs of `d` may use the memory now. A memfd is nobody's: what staging and pinning do for it is enough.
 */
static inline bool cuda_peer_is_admitted(const struct cuda_device *d, struct backend_memory *memory)
{
    return !memory || !memory->device || memory->device == &d->base ||
           (atomic_load_explicit(&cuda_memory(memory)->peers, memory_order_acquire) & 1U << d->base.index);
}

/* any; may block. Makes it so. Leaves `d`'s context current. Errors: device_mismatch, device_lost. */
int cuda_peer_allow(struct cuda_device *d, struct backend_memory *memory, struct error *e);

/* any. Where jobs of `d` see the memory, which is admitted there. */
uint64_t cuda_peer_address(const struct cuda_device *d, struct backend_memory *memory);

/* any. Undoes what allowing peers took; before the memory is closed. Leaves any context current. */
void cuda_peer_forget(struct cuda_memory *m);

/* any. cuMemSetAccess for one device. */
CUresult cuda_peer_set_access(const struct cuda_device *d, CUdeviceptr address, uint64_t size, bool writable);

/* any. Gives the memory's own device, and all that were allowed before, access to `size` bytes that were just mapped at
 * the end of what is there, and counts them in. */
int cuda_peer_admit(struct cuda_memory *m, CUdeviceptr address, uint64_t size, struct error *e);

#endif
