/* Device memory of other processes and of the daemon: records of mappings, kinds of memory, and access of a GPU to
 * another's memory. Thread: any, the device's context current, except where a function says otherwise. */
#ifndef KOPS_CUDA_MAPPING_H
#define KOPS_CUDA_MAPPING_H

#include <stdatomic.h>

#include "backend/backend.h"
#include "driver/device.h"

struct cuda_pool;

struct cuda_memory {
    struct backend_memory base; /* first */
    atomic_uint peers;          /* other devices with access: bits by index of device */

    /* MEMORY_CUDA_IPC: the handle, and the address on each device with access, by index of device */
    CUipcMemHandle handle;
    uint64_t seen_at[BACKEND_MAX_DEVICES];

    /* MEMORY_CUDA_VMM: the range of addresses, with `guard` bytes of unmapped addresses before and behind it, and the
     * allocations, which are mapped from its start on */
    uint64_t reserved, guard, mapped;
    uint64_t *chunks; /* bytes of each allocation */
    unsigned n_chunks;
    bool stuck; /* the driver failed to unmap a piece: the range stays reserved, and nothing more is mapped there */

    struct cuda_pool *pool; /* MEMORY_CUDA_POOL: a reference */
};

static inline struct cuda_memory *cuda_memory(struct backend_memory *base)
{
    return (struct cuda_memory *)(void *)base;
}

/* ---- functions of struct backend ---- */

int cuda_memory_import(struct backend_device *base, const struct backend_import *import,
                       struct backend_memory **ret_memory, struct error *e);
int cuda_memory_alloc(struct backend_device *base, uint64_t size, struct backend_memory **ret_memory, int *ret_fd,
                      struct error *e);
int cuda_memory_extend(struct backend_memory *memory, const struct backend_import *more, uint64_t *ret_size,
                       struct error *e);
void cuda_memory_close(struct backend_memory *memory);
unsigned cuda_memory_kinds(struct backend_device *base);
/* Thread: loop. */
bool cuda_can_access(struct backend_device *device, struct backend_device *owner);

/* ---- peers ---- */

/* Whether jobs of `d` may use the memory now. True for a memfd, to which staging and registration give access. */
static inline bool cuda_peer_has_access(const struct cuda_device *d, struct backend_memory *memory)
{
    return !memory || !memory->device || memory->device == &d->base ||
           (atomic_load_explicit(&cuda_memory(memory)->peers, memory_order_acquire) & 1U << d->base.index);
}

/* Gives `d` access to the memory, and leaves `d`'s context current. Errors: device_mismatch, device_lost. May block. */
int cuda_peer_allow(struct cuda_device *d, struct backend_memory *memory, struct error *e);

/* Returns the memory's address for jobs of `d`, which has access. */
uint64_t cuda_peer_address(const struct cuda_device *d, struct backend_memory *memory);

/* cuMemSetAccess for one device. */
CUresult cuda_peer_set_access(const struct cuda_device *d, CUdeviceptr address, uint64_t size, bool writable);

/* Adds `size` bytes, just mapped behind the memory's last byte, to the memory: gives access to the memory's own device,
 * and to each device that has access to the memory. */
int cuda_peer_extend(struct cuda_memory *m, CUdeviceptr address, uint64_t size, struct error *e);

/* ---- records ---- */

struct cuda_memory *cuda_memory_new(struct cuda_device *d, enum backend_memory_kind kind, uint64_t address,
                                    uint64_t size, bool writable, struct error *e);

/* Fills `e` when `call` refused another process's memory. The driver's codes vary, even "unknown"; none means that the
 * context broke, which the next call would show. */
int cuda_memory_refused(struct cuda_device *d, CUresult r, const char *call, const char *why, struct error *e);

int cuda_memory_too_small(uint64_t needed, uint64_t size, struct error *e);

/* ---- vmm.c: allocations mapped to consecutive addresses ---- */

int cuda_vmm_import(struct cuda_device *d, const struct backend_import *import, struct cuda_memory **ret_memory,
                    struct error *e);
void cuda_vmm_close(struct cuda_memory *m);

#endif
