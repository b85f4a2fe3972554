/* A buffer: memory of this process or of the daemon, with what it takes to make it known to a connection.
 *
 * `id` is good for the connection of `generation` only; on another one the buffer is registered anew at its next use,
 * from the descriptor or handle kept here, or is lost when the daemon refuses it then. A buffer holds a reference to
 * its client. Members are guarded by the client's lock, or constant once the buffer was given out. */
#ifndef KOPS_CLIENT_BUFFER_H
#define KOPS_CLIENT_BUFFER_H

#include <sys/types.h>

#include "cuda/cuda_driver.h"
#include "session/recover.h"

/* VMM: memory that the daemon's alloc made; CHUNKS: this process's own virtual memory. */
enum buffer_kind { BUFFER_SHARED, BUFFER_CUDA, BUFFER_VMM, BUFFER_CHUNKS, BUFFER_POOL };

struct kops_buffer {
    struct kops_client *client;
    enum buffer_kind kind;
    enum kops_access access;
    uint64_t size; /* usable bytes, from where the caller's offsets count */
    int fd;        /* SHARED, VMM, POOL: ours; else -1 */
    void *data;    /* SHARED: where it is mapped */

    char device[CUDA_UUID_TEXT];   /* all but SHARED */
    struct cuda_ipc_handle handle; /* CUDA, POOL */
    uint64_t alloc_id;
    uint64_t base_offset; /* CUDA, CHUNKS, POOL: of the caller's pointer in its allocation */
    uint64_t *chunks;     /* CHUNKS: bytes of each allocation that is mapped there, in order */
    unsigned n_chunks;
    pid_t cuda_process;   /* whose pointer `pointer` is, since CUDA does not survive a fork; 0: nobody's */
    cuda_pointer pointer; /* CUDA, CHUNKS, POOL: the caller's; VMM: once mapped */

    uint64_t id;
    uint32_t generation;
    bool lost;            /* no daemon will take it any more */
    uint32_t registering; /* the generation for which some thread is at it; 0: none */
};

/* Zeroed, with a reference to the client; NULL without memory. Lock held. */
struct kops_buffer *buffer_new(struct kops_client *c, enum buffer_kind kind, uint64_t size, enum kops_access access);

/* Frees what the process holds for it and drops its reference. Called with the lock held, which it drops. */
void buffer_free_leave(struct kops_buffer *b);

/* Makes the buffer known to the present connection. Lock held, may drop it while it waits. */
enum kops_code buffer_ensure(struct kops_buffer *b, uint64_t deadline, struct kops_error *e);

/* buffer_export.c: the memory that holds the pointer, in whatever way it can be shared: a buffer that is not registered
 * yet. Lock held. */
enum kops_code buffer_export(struct kops_client *c, const struct cuda_driver *d, cuda_pointer pointer,
                             enum kops_access access, struct kops_buffer **ret_buffer, struct kops_error *e);

/* buffer_export.c: a descriptor, the caller's, of the allocation that is mapped at an address. */
enum kops_code buffer_export_chunk(cuda_pointer address, int *ret_fd, struct kops_error *e);

/* buffer_cuda.c: gives back the mapping of device memory that map made. */
void buffer_unmap_cuda(struct kops_buffer *b);

/* buffer_cuda.c: copies between device memory and the host, `to` or `from` being NULL. */
enum kops_code buffer_copy_cuda(struct kops_buffer *b, uint64_t offset, void *to, const void *from, size_t size,
                                struct kops_error *e);

#endif
