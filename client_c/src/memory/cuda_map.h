/* Device memory that the daemon allocated, in this process's address space. Lock held. */
#ifndef KOPS_CLIENT_CUDA_MAP_H
#define KOPS_CLIENT_CUDA_MAP_H

#include "base/clock.h"
#include "buffer.h"

/* Tells whether b->pointer and b->ordinal are valid in this process, process_id(): then they stay so. Without the lock.
 */
static inline bool cuda_map_is_here(const struct kops_buffer *b, pid_t process)
{
    return atomic_load_explicit(&b->cuda_process, memory_order_acquire) == process;
}

/* Unmaps the memory, where it is mapped. */
void cuda_map_drop(struct kops_buffer *b);

/* Makes b->pointer and b->ordinal valid in this process; memory of the daemon's is mapped first. Errors: bad_argument
 * (no device memory), no_cuda, device_error. */
enum kops_code cuda_map_pointer(const struct cuda_driver *d, struct kops_buffer *b, struct kops_error *e);

/* Copies between device memory and the host, `to` or `from` being NULL. Maps the memory first. */
enum kops_code cuda_map_copy(struct kops_buffer *b, uint64_t offset, void *to, const void *from, size_t size,
                             struct kops_error *e);

#endif
