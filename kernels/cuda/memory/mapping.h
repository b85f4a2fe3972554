/* The record of one mapping of device memory, and checks that all kinds of mappings share. Thread: any; the device's
 * context is current. */
#ifndef KOPS_CUDA_MAPPING_H
#define KOPS_CUDA_MAPPING_H

#include <stdatomic.h>

#include "backend/backend.h"
#include "driver/device.h"

struct cuda_pool;

/* A struct backend_memory that stands for device memory. */
struct cuda_memory {
    struct backend_memory base; /* first */
    atomic_uint peers;          /* bits by index of device: the other devices that may use it; see peer.h */

    /* MEMORY_CUDA_IPC: the handle, and the address that each allowed device sees, by index of device */
    CUipcMemHandle handle;
    uint64_t seen_at[BACKEND_MAX_DEVICES];

    /* MEMORY_CUDA_VMM: the range of addresses, before and behind which `guard` bytes of addresses have no memory, and
     * the allocations mapped from its start on */
    uint64_t reserved, guard, mapped;
    uint64_t *chunks; /* bytes of each */
    unsigned n_chunks;
    bool stuck; /* the driver did not unmap a piece: the range stays taken, and nothing more is mapped there */

    struct cuda_pool *pool; /* MEMORY_CUDA_POOL: a reference */
};

static inline struct cuda_memory *cuda_memory(struct backend_memory *base)
{
    return (struct cuda_memory *)(void *)base;
}

struct cuda_memory *cuda_memory_new(struct cuda_device *d, enum backend_memory_kind kind, uint64_t address,
                                    uint64_t size, bool writable, struct error *e);

/* Fills `e` for something of another process that `call` refused. The driver does so with various codes, even
 * "unknown"; none of them says that the context broke, which the next call would show. */
int cuda_memory_refused(struct cuda_device *d, CUresult r, const char *call, const char *why, struct error *e);

int cuda_memory_too_small(uint64_t needed, uint64_t size, struct error *e);

/* Fails unless opened memory is of this device and at least as large as declared. */
int cuda_memory_check(struct cuda_device *d, CUdeviceptr address, uint64_t declared, uint64_t *ret_size,
                      struct error *e);

#endif
