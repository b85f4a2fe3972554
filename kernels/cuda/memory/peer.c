/* Owns the access of devices to each other's memory. */
#include "peer.h"

#include <pthread.h>

#include "ipc.h"
#include "pool.h"

/* Guards `mapped` and `peers` of virtual memory together: a device that is being allowed must also get access to bytes
 * that are mapped meanwhile. Held for a few calls of the driver, once for each memory and device. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* By index of device, a bit for each other device: whether the driver was asked, and whether it said yes. The machine's
 * links do not change. Thread: loop. */
static uint32_t asked[BACKEND_MAX_DEVICES], possible[BACKEND_MAX_DEVICES];

/* By index, the devices that were allowed to use any memory of another. Under the lock. */
static struct cuda_device *allowed[BACKEND_MAX_DEVICES];

bool cuda_can_access(struct backend_device *device, struct backend_device *owner)
{
    const uint32_t bit = 1U << owner->index;
    int can = 0;

    if (device == owner)
        return true;
    if (!(asked[device->index] & bit)) {
        asked[device->index] |= bit;
        if (cuda.DeviceCanAccessPeer &&
            cuda.DeviceCanAccessPeer(&can, cuda_device(device)->ordinal, cuda_device(owner)->ordinal) == CUDA_SUCCESS &&
            can)
            possible[device->index] |= bit;
    }
    return possible[device->index] & bit;
}

CUresult cuda_peer_set_access(const struct cuda_device *d, CUdeviceptr address, uint64_t size, bool writable)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = d->ordinal},
                              .flags = writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ};
    CUresult r = cuda_on(d)->MemSetAccess(address, size, &access, 1);

    /* Not every driver has reading alone. The server refuses such memory as an output anyway. */
    if (!writable && (r == CUDA_ERROR_NOT_SUPPORTED || r == CUDA_ERROR_INVALID_VALUE)) {
        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        r = cuda_on(d)->MemSetAccess(address, size, &access, 1);
    }
    return r;
}

int cuda_peer_extend(struct cuda_memory *m, CUdeviceptr address, uint64_t size, struct error *e)
{
    struct cuda_device *owner = cuda_device(m->base.device);
    unsigned peers;
    CUresult r;

    pthread_mutex_lock(&lock);
    peers = atomic_load_explicit(&m->peers, memory_order_relaxed);
    r = cuda_peer_set_access(owner, address, size, m->base.writable);
    for (unsigned i = 0; r == CUDA_SUCCESS && i < BACKEND_MAX_DEVICES; i++)
        if (peers & 1U << i)
            r = cuda_peer_set_access(allowed[i], address, size, m->base.writable);
    if (r == CUDA_SUCCESS)
        m->mapped += size;
    pthread_mutex_unlock(&lock);
    return cuda_check(owner, r, "cuMemSetAccess", e);
}

/* Peer access between contexts does not cover memory of other processes: using such memory is an illegal access (H200,
 * driver 580). Each context opens the handle for itself, and has the memory at another address. */
static CUresult open_again(struct cuda_device *d, struct cuda_memory *m)
{
    CUdeviceptr address;
    CUresult r = cuda_ipc_open(d, m, &address);

    if (r == CUDA_SUCCESS)
        m->seen_at[d->base.index] = address;
    return r;
}

static CUresult allow(struct cuda_device *d, struct cuda_memory *m)
{
    switch (m->base.kind) {
    case MEMORY_CUDA_VMM:
        return cuda_peer_set_access(d, m->base.address, m->mapped, m->base.writable);
    case MEMORY_CUDA_POOL:
        return cuda_pool_allow(m->pool, d);
    default:
        return open_again(d, m);
    }
}

uint64_t cuda_peer_address(const struct cuda_device *d, struct backend_memory *memory)
{
    if (memory->kind != MEMORY_CUDA_IPC || memory->device == &d->base)
        return memory->address;
    return cuda_memory(memory)->seen_at[d->base.index];
}

void cuda_peer_forget(struct cuda_memory *m)
{
    struct error ignored;

    for (unsigned i = 0; m->base.kind == MEMORY_CUDA_IPC && i < BACKEND_MAX_DEVICES; i++)
        if (m->seen_at[i] && cuda_enter(allowed[i], &ignored) == 0)
            cuda_ipc_close(allowed[i], m->seen_at[i]);
}

int cuda_peer_allow(struct cuda_device *d, struct backend_memory *memory, struct error *e)
{
    struct cuda_memory *m = cuda_memory(memory);
    CUresult r;

    if (cuda_peer_has_access(d, memory))
        return 0;
    if (cuda_enter(d, e) < 0)
        return -1;
    pthread_mutex_lock(&lock);
    r = allow(d, m);
    if (r == CUDA_SUCCESS) {
        allowed[d->base.index] = d;
        atomic_fetch_or_explicit(&m->peers, 1U << d->base.index, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    if (r == CUDA_SUCCESS || cuda_result_is_sticky(r))
        return cuda_check(d, r, "allowing a peer", e);
    error_set(e, ERROR_DEVICE_MISMATCH,
              "%s cannot use memory of %s: the driver gives it no peer access; move the tensors "
              "to one device",
              d->base.info.uuid, memory->device->info.uuid);
    return error_detail_text(e, "driver", cuda_result_name(r));
}
