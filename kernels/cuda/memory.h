/* Device memory of other processes, and ours that they may map. Thread: any, unless said otherwise. */
#ifndef KOPS_CUDA_MEMORY_H
#define KOPS_CUDA_MEMORY_H

#include <stdatomic.h>

#include "backend/backend.h"
#include "driver.h"

struct cuda_pool;

/* What the server knows as struct backend_memory, where device memory is concerned. */
struct cuda_memory {
    struct backend_memory base; /* first */
    atomic_uint peers;          /* by index of device: which others may use it; see peer.h */

    /* MEMORY_CUDA_IPC: the handle; and where other devices see the memory, by index, once they were allowed */
    CUipcMemHandle handle;
    uint64_t seen_at[BACKEND_MAX_DEVICES];

    /* MEMORY_CUDA_VMM: the range of addresses, and the allocations mapped from its start on */
    uint64_t reserved, mapped;
    uint64_t *chunks; /* bytes of each */
    unsigned n_chunks;
    bool stuck; /* the driver did not unmap a piece: the range stays taken, and nothing more is mapped there */

    struct cuda_pool *pool; /* MEMORY_CUDA_POOL: a reference */
};

static inline struct cuda_memory *cuda_memory(struct backend_memory *base)
{
    return (struct cuda_memory *)(void *)base;
}

/* backend.h's */
int cuda_memory_import(struct backend_device *base, const struct backend_import *import,
                       struct backend_memory **ret_memory, struct error *e);
int cuda_memory_alloc(struct backend_device *base, uint64_t size, struct backend_memory **ret_memory, int *ret_fd,
                      struct error *e);
int cuda_memory_extend(struct backend_memory *memory, const struct backend_import *more, uint64_t *ret_size,
                       struct error *e);
void cuda_memory_close(struct backend_memory *memory);
unsigned cuda_memory_kinds(struct backend_device *base);

/* ---- between the files of this backend; the device's context is current ---- */

struct cuda_memory *cuda_memory_new(struct cuda_device *d, enum backend_memory_kind kind, uint64_t address,
                                    uint64_t size, bool writable, struct error *e);

/* Fills `e` for something of another process that `call` refused. The driver does so with various codes, even
 * "unknown"; none of them says that the context broke, which the next call would show. */
int cuda_memory_refused(struct cuda_device *d, CUresult r, const char *call, const char *why, struct error *e);
/* Closes a CUDA IPC handle. The device is lost when the driver does not: a handle of the same bytes, which may mean
 * other memory by then, would bring up the old. */
void cuda_memory_close_handle(struct cuda_device *d, CUdeviceptr address);

int cuda_memory_too_small(uint64_t needed, uint64_t size, struct error *e);

/* Whether opened memory is of this device and as large as was declared. */
int cuda_memory_check(struct cuda_device *d, CUdeviceptr address, uint64_t declared, uint64_t *ret_size,
                      struct error *e);

int cuda_vmm_import(struct cuda_device *d, const struct backend_import *import, struct cuda_memory **ret_memory,
                    struct error *e);
void cuda_vmm_close(struct cuda_memory *m);

/* Whether the driver can open pools of other processes at all. */
bool cuda_pools_import(void);
int cuda_pool_import(struct cuda_device *d, const struct backend_import *import, struct cuda_memory **ret_memory,
                     struct error *e);
void cuda_pool_close(struct cuda_device *d, struct cuda_memory *m);
/* Lets another device use the pool's memory. */
CUresult cuda_pool_allow(const struct cuda_pool *pool, const struct cuda_device *peer);

#endif
