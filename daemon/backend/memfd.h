/* Shared host memory: maps a client's memfd safely, and makes the daemon's own. Thread: any. */
#ifndef KOPS_BACKEND_MEMFD_H
#define KOPS_BACKEND_MEMFD_H

#include "backend/backend.h"

/* Makes later mappings keep a descriptor of their memory in memory->fd, for executors. Call it before any memory is
 * mapped. */
void memfd_keep_fds(void);

/* Maps `size` bytes of a client's descriptor, read-only unless `writable`. The descriptor must be a memfd on tmpfs (not
 * hugetlbfs), at least `size` long, sealed against shrinking, and for `writable` not sealed against writing. `fd` stays
 * the caller's. Errors: invalid_fd, read_only, out_of_memory, quota_exceeded (descriptors). */
int memfd_map(int fd, uint64_t size, bool writable, struct backend_memory **ret_memory, struct error *e);

/* Checks a descriptor as memfd_map() does, without mapping it. */
int memfd_check(int fd, uint64_t size, bool writable, struct error *e);

/* Makes zeroed memory of `size` bytes, sealed against resizing. *ret_fd is the caller's. */
int memfd_new(uint64_t size, struct backend_memory **ret_memory, int *ret_fd, struct error *e);

/* Unmaps the memory; every device must have detached it. NULL is allowed; returns NULL. */
struct backend_memory *memfd_unmap(struct backend_memory *memory);

#endif
