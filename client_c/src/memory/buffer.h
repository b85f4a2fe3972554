/* A buffer: memory of this process or of the daemon, and the descriptor or handle that makes it known to a connection.
 *
 * The id is valid on one connection. On another one the buffer is registered anew at its next use, from the descriptor
 * or handle kept here; it is lost where the daemon then refuses it. A buffer holds a reference to its client. Members
 * are guarded by the client's lock, or constant once the buffer was given out. */
#ifndef KOPS_CLIENT_BUFFER_H
#define KOPS_CLIENT_BUFFER_H

#include <stdatomic.h>
#include <sys/types.h>

#include "base/clock.h"
#include "cuda/cuda_driver.h"
#include "session/connect.h"

/* BUFFER_VMM: memory that the daemon's alloc made; BUFFER_CHUNKS: this process's own virtual memory. */
enum buffer_kind { BUFFER_SHARED, BUFFER_CUDA, BUFFER_VMM, BUFFER_CHUNKS, BUFFER_POOL };

struct kops_buffer {
    struct kops_client *client;
    enum buffer_kind kind;
    enum kops_access access;
    uint64_t size; /* usable bytes, from the start of the caller's offsets on */
    int fd;        /* SHARED, VMM, POOL: owned; else -1 */
    void *data;    /* SHARED: address of its mapping */

    char device[CUDA_UUID_TEXT];   /* all but SHARED */
    struct cuda_ipc_handle handle; /* CUDA, POOL */
    uint64_t alloc_id;
    uint64_t base_offset; /* CUDA, CHUNKS, POOL: the caller's pointer, from the start of its allocation */
    uint64_t *chunks;     /* CHUNKS: bytes of each allocation mapped there, in order */
    unsigned n_chunks;
    /* Process in which `pointer` and `ordinal` are valid, since CUDA does not survive a fork; 0: none. Written last,
     * and the two do not change afterwards: a reader that finds its own process here needs no lock. */
    _Atomic pid_t cuda_process;
    cuda_pointer pointer; /* CUDA, CHUNKS, POOL: the caller's; VMM: once mapped */
    int ordinal;          /* ordinal of `device` in that process */

    struct remote remote; /* the buffer's id on the daemon's side */
    bool lost;            /* no daemon will take it any more */
};

/* Zeroed, with a reference to the client; NULL without memory. Lock held. */
struct kops_buffer *buffer_new(struct kops_client *c, enum buffer_kind kind, uint64_t size, enum kops_access access);

/* Frees the buffer and its mappings here, and drops its reference. Called with the lock held, which it drops. */
void buffer_free_leave(struct kops_buffer *b);

/* Makes the buffer known to the present connection. Lock held, may drop it while it waits. */
enum kops_code buffer_ensure(struct kops_buffer *b, uint64_t deadline, struct kops_error *e);

/* SHARED: maps the descriptor. */
enum kops_code buffer_map_shared(struct kops_buffer *b, struct kops_error *e);

/* Memory that a tensor covers, to see whether two tensors meet. Conservative: all bytes between the first and the last
 * element count as covered. Lock held. */
struct span {
    uint64_t space[3];      /* the kind of memory, and its identity: bytes of different spaces never meet */
    uint64_t begin, length; /* range within the space */
};

/* Computes the span of a tensor. False: its memory cannot be known. */
bool span_of(const struct kops_tensor *t, struct span *ret);

bool spans_meet(const struct span *a, const struct span *b);

/* ---- device memory that the daemon allocated, in this process's address space. Lock held. ---- */

/* Tells whether b->pointer and b->ordinal are valid in this process, process_id(): then they stay so. Without the lock.
 */
static inline bool cuda_map_is_here(const struct kops_buffer *b, pid_t process)
{
    return atomic_load_explicit(&b->cuda_process, memory_order_acquire) == process;
}

/* Makes b->pointer and b->ordinal valid in this process; memory of the daemon's is mapped first. Errors: bad_argument
 * (no device memory), no_cuda, device_error. */
enum kops_code cuda_map_pointer(const struct cuda_driver *d, struct kops_buffer *b, struct kops_error *e);

/* Copies between device memory and the host, `to` or `from` being NULL. Maps the memory first. */
enum kops_code cuda_map_copy(struct kops_buffer *b, uint64_t offset, void *to, const void *from, size_t size,
                             struct kops_error *e);

#endif
