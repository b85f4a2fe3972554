/* Owns the records of mappings, the imported pools, and the access of devices to each other's memory. */
#include "mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "util/list.h"

/* Checks that opened memory belongs to this device and is at least as large as declared. */
static int cuda_memory_check(struct cuda_device *d, CUdeviceptr address, uint64_t declared, uint64_t *ret_size,
                             struct error *e)
{
    CUdeviceptr base;
    size_t bytes;
    uint64_t usable;
    int ordinal;

    if (CUDA_CALL(d, e, PointerGetAttribute, &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) < 0)
        return -1;
    if (ordinal != d->ordinal)
        return error_set(e, ERROR_INVALID_HANDLE, "the handle is of another GPU than %s; say its own device",
                         d->base.info.uuid);
    if (CUDA_CALL(d, e, MemGetAddressRange, &base, &bytes, address) < 0)
        return -1;
    usable = bytes - (uint64_t)(address - base);
    if (declared > usable)
        return cuda_memory_too_small(declared, usable, e);
    *ret_size = usable;
    return 0;
}

/* ---- other processes' pools (cudaMallocAsync). The exporter sends the same descriptor with each pointer, and a pool
 * is imported once. ---- */

#ifndef KCMP_FILE
#define KCMP_FILE 0 /* some systems lack linux/kcmp.h */
#endif

_Static_assert(sizeof(CUmemPoolPtrExportData) == BACKEND_IPC_HANDLE_SIZE, "the wire's handles are the driver's");

struct cuda_pool {
    struct list link;
    struct cuda_device *device;
    CUmemoryPool pool;
    int fd; /* identifies the pool */
    unsigned references;
};

/* Held while a pool is imported, so that no pool is imported twice. */
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static struct list pools = {&pools, &pools};

/* Whether the driver can open pools of other processes. */
static bool cuda_pools_import(void)
{
    return CUDA_HAS(MemPoolImportFromShareableHandle) && CUDA_HAS(MemPoolImportPointer) && CUDA_HAS(MemPoolSetAccess);
}

static CUresult cuda_pool_allow(const struct cuda_pool *pool, const struct cuda_device *peer)
{
    const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = peer->ordinal},
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

    return cuda_on(pool->device)->MemPoolSetAccess(pool->pool, &access, 1);
}

static struct cuda_pool *pool_new(struct cuda_device *d, int fd, struct error *e)
{
    struct cuda_pool *p = calloc(1, sizeof(*p));
    CUresult r;

    if (!p) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a pool's record");
        return NULL;
    }
    p->device = d;
    p->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (p->fd < 0) {
        error_set(e, ERROR_OUT_OF_MEMORY, "duplicating a pool's descriptor: %s", strerror(errno));
        goto free_record;
    }
    r = cuda_on(d)->MemPoolImportFromShareableHandle(&p->pool, (void *)(intptr_t)fd,
                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (r != CUDA_SUCCESS) {
        cuda_memory_refused(d, r, "cuMemPoolImportFromShareableHandle",
                            "the descriptor is not that of a memory pool on a GPU that the daemon uses", e);
        goto close_fd;
    }
    if (cuda_check(d, cuda_pool_allow(p, d), "cuMemPoolSetAccess", e) < 0)
        goto destroy_pool;
    list_append(&pools, &p->link);
    return p;

destroy_pool:
    cuda_on(p->device)->MemPoolDestroy(p->pool);
close_fd:
    close(p->fd);
free_record:
    free(p);
    return NULL;
}

static struct cuda_pool *pool_get(struct cuda_device *d, int fd, struct error *e)
{
    struct cuda_pool *found = NULL;

    pthread_mutex_lock(&pools_lock);
    list_for_each_safe (node, after, &pools) {
        struct cuda_pool *p = list_entry(node, struct cuda_pool, link);

        if (p->device == d && syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, p->fd, fd) == 0)
            found = p;
    }
    if (!found)
        found = pool_new(d, fd, e);
    if (found)
        found->references++;
    pthread_mutex_unlock(&pools_lock);
    return found;
}

static void pool_put(struct cuda_pool *p)
{
    pthread_mutex_lock(&pools_lock);
    if (--p->references == 0) {
        list_remove(&p->link);
        cuda_on(p->device)->MemPoolDestroy(p->pool);
        close(p->fd);
        free(p);
    }
    pthread_mutex_unlock(&pools_lock);
}

/* Frees the pointer, which tells the exporter's driver that this process no longer uses the memory. */
static void give_back(struct cuda_device *d, CUdeviceptr address)
{
    if (cuda_on(d)->MemFreeAsync(address, d->service) == CUDA_SUCCESS)
        cuda_on(d)->StreamSynchronize(d->service);
}

static int cuda_pool_import(struct cuda_device *d, const struct backend_import *import, struct cuda_memory **ret_memory,
                            struct error *e)
{
    CUmemPoolPtrExportData data;
    struct cuda_pool *pool;
    struct cuda_memory *m;
    CUdeviceptr address;
    uint64_t size = 0;
    CUresult r;

    if (!cuda_pools_import())
        return error_set(e, ERROR_UNSUPPORTED, "this machine's driver does not share pools between processes");
    pool = pool_get(d, import->fds[0], e);
    if (!pool)
        return -1;
    memcpy(&data, import->handle, sizeof(data));
    r = cuda_on(d)->MemPoolImportPointer(&address, pool->pool, &data);
    if (r != CUDA_SUCCESS) {
        cuda_memory_refused(d, r, "cuMemPoolImportPointer",
                            "the handle is no pointer of this pool: its memory was freed or its owner has ended", e);
        goto put_pool;
    }
    if (cuda_memory_check(d, address, import->size, &size, e) < 0)
        goto free_pointer;
    m = cuda_memory_new(d, MEMORY_CUDA_POOL, address, size, import->writable, e);
    if (!m)
        goto free_pointer;
    m->pool = pool;
    *ret_memory = m;
    return 0;

free_pointer:
    give_back(d, address);
put_pool:
    pool_put(pool);
    return -1;
}

static void cuda_pool_close(struct cuda_device *d, struct cuda_memory *m)
{
    give_back(d, m->base.address);
    pool_put(m->pool);
}

/* ---- records ---- */

struct cuda_memory *cuda_memory_new(struct cuda_device *d, enum backend_memory_kind kind, uint64_t address,
                                    uint64_t size, bool writable, struct error *e)
{
    struct cuda_memory *m = calloc(1, sizeof(*m));

    if (!m) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a mapping's record");
        return NULL;
    }
    m->base.kind = kind;
    m->base.address = address;
    m->base.size = size;
    m->base.writable = writable;
    m->base.device = &d->base;
    return m;
}

int cuda_memory_refused(struct cuda_device *d, CUresult r, const char *call, const char *why, struct error *e)
{
    if (r == CUDA_ERROR_OUT_OF_MEMORY || (r != CUDA_ERROR_UNKNOWN && cuda_result_is_sticky(r)))
        return cuda_fail(d, r, call, e);
    if (r == CUDA_ERROR_NOT_SUPPORTED || r == CUDA_ERROR_NOT_PERMITTED)
        error_set(e, ERROR_UNSUPPORTED, "this machine's driver does not share such memory between processes");
    else
        error_set(e, ERROR_INVALID_HANDLE, "%s", why);
    return error_detail_text(e, "driver", cuda_result_name(r));
}

int cuda_memory_too_small(uint64_t needed, uint64_t size, struct error *e)
{
    error_set(e, ERROR_OUT_OF_BOUNDS, "the memory behind the handle is smaller than declared");
    error_detail_number(e, "needed", (int64_t)needed);
    return error_detail_number(e, "size", (int64_t)size);
}

/* ---- CUDA IPC handles ---- */

_Static_assert(sizeof(CUipcMemHandle) == BACKEND_IPC_HANDLE_SIZE, "the wire's handles are the driver's");

static int import_ipc(struct cuda_device *d, const struct backend_import *import, struct cuda_memory **ret_memory,
                      struct error *e)
{
    CUipcMemHandle handle;
    CUdeviceptr address;
    uint64_t size = 0;
    CUresult r;

    memcpy(&handle, import->handle, sizeof(handle));
    r = cuda_on(d)->IpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (r != CUDA_SUCCESS)
        return cuda_memory_refused(
            d, r, "cuIpcOpenMemHandle",
            "the IPC handle could not be opened: its memory was freed, its owner has ended, it is of another "
            "GPU, it was exported by the daemon itself, or the two processes see different pid namespaces",
            e);
    if (cuda_memory_check(d, address, import->size, &size, e) < 0)
        goto close_handle;
    *ret_memory = cuda_memory_new(d, MEMORY_CUDA_IPC, address, size, import->writable, e);
    if (!*ret_memory)
        goto close_handle;
    (*ret_memory)->handle = handle;
    return 0;

close_handle:
    cuda_on(d)->IpcCloseMemHandle(address);
    return -1;
}

static void close_ipc(struct cuda_device *d, CUdeviceptr address)
{
    CUresult r = cuda_on(d)->IpcCloseMemHandle(address);

    if (r != CUDA_SUCCESS)
        cuda_device_break(d, r);
}

/* ---- peers ---- */

/* Guards `mapped` together with `peers` of virtual memory: a device that gets access must also get it to bytes that are
 * mapped meanwhile. Held during a few calls of the driver. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* By index of device, bits of other devices: whether the driver was asked about access, and allows it. Thread: loop. */
static uint32_t asked[BACKEND_MAX_DEVICES], possible[BACKEND_MAX_DEVICES];

/* Devices that use memory of another device, by index. Under the lock. */
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

    /* Some drivers do not support read-only access. The server refuses such memory as an output anyway. */
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

/* Opens the handle once more, for device `d`: peer access between contexts does not cover memory of other processes
 * (H200, driver 580), so each context opens the handle and has the memory at another address. */
static CUresult open_again(struct cuda_device *d, struct cuda_memory *m)
{
    CUdeviceptr address;
    CUresult r = cuda_on(d)->IpcOpenMemHandle(&address, m->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);

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

static void forget_peers(struct cuda_memory *m)
{
    struct error ignored;

    for (unsigned i = 0; m->base.kind == MEMORY_CUDA_IPC && i < BACKEND_MAX_DEVICES; i++)
        if (m->seen_at[i] && cuda_enter(allowed[i], &ignored) == 0)
            close_ipc(allowed[i], m->seen_at[i]);
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

/* ---- all kinds ---- */

int cuda_memory_import(struct backend_device *base, const struct backend_import *import,
                       struct backend_memory **ret_memory, struct error *e)
{
    struct cuda_device *d = cuda_device(base);
    struct cuda_memory *m = NULL;
    int result;

    if (cuda_enter(d, e) < 0)
        return -1;
    switch (import->kind) {
    case MEMORY_CUDA_IPC:
        result = import_ipc(d, import, &m, e);
        break;
    case MEMORY_CUDA_VMM:
        result = cuda_vmm_import(d, import, &m, e);
        break;
    case MEMORY_CUDA_POOL:
        result = cuda_pool_import(d, import, &m, e);
        break;
    default:
        return error_set(e, ERROR_UNSUPPORTED, "this device opens no such memory");
    }
    if (result == 0)
        *ret_memory = &m->base;
    return result;
}

unsigned cuda_memory_kinds(struct backend_device *base)
{
    const struct cuda_device *d = cuda_device(base);
    unsigned kinds = 1U << MEMORY_CUDA_IPC;

    if (cuda_device_attribute(d, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
        kinds |= 1U << MEMORY_CUDA_VMM;
    if (cuda_pools_import() && cuda_device_attribute(d, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES) &
                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        kinds |= 1U << MEMORY_CUDA_POOL;
    return kinds;
}

void cuda_memory_close(struct backend_memory *memory)
{
    struct cuda_memory *m = cuda_memory(memory);
    struct cuda_device *d = cuda_device(memory->device);
    struct error ignored;

    forget_peers(m);
    /* A broken context cannot free memory. */
    if (cuda_enter(d, &ignored) == 0) {
        if (memory->kind == MEMORY_CUDA_IPC)
            close_ipc(d, memory->address);
        else if (memory->kind == MEMORY_CUDA_VMM)
            cuda_vmm_close(m);
        else
            cuda_pool_close(d, m);
    }
    free(m->chunks);
    free(m);
}
