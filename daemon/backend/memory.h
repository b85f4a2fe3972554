/* Memory of backends: the ids by which steps name it, and host memory that is shared by memfds. */
#ifndef KOPS_BACKEND_MEMORY_H
#define KOPS_BACKEND_MEMORY_H

#include "backend/backend.h"

/* ---- ids ----
 *
 * A step names its operands' memory by id, not by pointer. Each mapping has one id as long as it exists; the id
 * resolves to memory while the mapping is open. */

/* A new id, which leads nowhere yet. 0: out_of_memory, there are too many. Thread: loop; so for the next two. */
uint32_t memory_id_new(struct error *e);
/* From now on the id leads to that memory; NULL: nowhere, and no job uses the id. */
void memory_id_set(uint32_t id, struct backend_memory *memory);
/* Gives the id back for others. Harmless with 0. */
void memory_id_free(uint32_t id);

/* The memory of that id; NULL for 0. Thread: any, while a job that uses the memory is not done. */
struct backend_memory *memory_by_id(uint32_t id);

/* ---- memfds: mapping a client's safely, and making the daemon's own; thread: any ---- */

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
