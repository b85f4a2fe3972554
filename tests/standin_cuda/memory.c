/* Memory that the program allocates, what a pointer is, and which device touches what of another's.
 *
 * Freed memory goes back to the device at once, so a pool is a name, a limit, and who may use its memory. A pool lives
 * while it has its handle or memory of it is live. For other processes a descriptor names a pool, a small file that
 * tells what it is, and 64 bytes name memory of it: which slot, and what must be found there, so that what was freed
 * since is refused.
 *
 * cuMemAlloc's memory is open to contexts of its own device, IPC mappings to the context that opened them, VMM maps and
 * pools to the devices that were named. KOPS_STANDIN_NO_PEER=1: no device reaches another. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "standin.h"

struct pool {
    CUmemoryPool handle; /* valid unless destroyed */
    bool destroyed;
    int device;
    unsigned handle_types;
    bool imported;             /* no memory can be allocated from it */
    unsigned regions;          /* live ones */
    uint32_t readers, writers; /* a bit a device */
    uint64_t id;               /* within the process that made it */
    unsigned char token[16];   /* of that process */
    uint64_t max, used;
    int fd; /* what is exported; -1: nothing yet, or imported */
};

/* ---- devices ---- */

bool devices_are_peers(int device, int other)
{
    const char *none = getenv("KOPS_STANDIN_NO_PEER");

    return device != other && !(none && *none == '1');
}

bool region_allows(const struct region *region, const struct context *context, bool write, bool copies)
{
    uint32_t bit = 1U << context->device;
    bool own = region->device == context->device;

    if (region->kind == REGION_VMM)
        return ((write ? region->writers : region->readers) & bit) != 0;
    if (region->pool)
        return ((write ? region->pool->writers : region->pool->readers) & bit) != 0;
    if (!region->readable || (write && !region->writable))
        return false;
    if (region->kind == REGION_IPC) /* whatever peers were enabled */
        return region->context == context || copies;
    return own || region->kind == REGION_HOST || copies;
}

API cuDeviceCanAccessPeer(int *ret_can, CUdevice device, CUdevice peer)
{
    ENTER(enter("cuDeviceCanAccessPeer"));
    if (!device_is_valid(device) || !device_is_valid(peer))
        return leave(CUDA_ERROR_INVALID_DEVICE);
    if (!ret_can)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_can = devices_are_peers(device, peer);
    return leave(CUDA_SUCCESS);
}

/* ---- pools ---- */

static struct pool *pool_get(CUmemoryPool handle)
{
    return handle_get(HANDLE_POOL, handle);
}

static struct pool *pool_new(int device, unsigned handle_types)
{
    static uint64_t last_id;
    struct pool *pool = calloc(1, sizeof(*pool));

    if (!pool)
        return NULL;
    pool->handle = handle_new(HANDLE_POOL, pool);
    if (!pool->handle) {
        free(pool);
        return NULL;
    }
    pool->device = device;
    pool->handle_types = handle_types;
    pool->readers = pool->writers = 1U << device;
    pool->id = ++last_id;
    memcpy(pool->token, process_token(), sizeof(pool->token));
    pool->fd = -1;
    return pool;
}

static void pool_end_if_unused(struct pool *pool)
{
    if (!pool->destroyed || pool->regions)
        return;
    if (pool->fd >= 0)
        close(pool->fd);
    free(pool);
}

static void pool_charge(struct pool *pool, uint64_t bytes)
{
    pool->regions++;
    pool->used += bytes;
}

static void pool_refund(struct pool *pool, uint64_t bytes)
{
    pool->regions--;
    pool->used -= bytes;
    pool_end_if_unused(pool);
}

static struct pool *default_pool(int device)
{
    struct device *d = &standin_devices[device];

    if (!d->default_pool)
        d->default_pool = pool_new(device, 0);
    return d->default_pool;
}

/* ---- memory in stream order ---- */

static CUresult allocate(struct context *context, CUdeviceptr *ret_address, size_t size, struct pool *pool,
                         CUstream handle)
{
    struct stream *stream;
    CUresult r = stream_get(handle, context, &stream);

    if (r != CUDA_SUCCESS)
        return r;
    if (!pool)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!ret_address || pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return capture_refuse(stream);
    if (pool->max && (size > pool->max || pool->used > pool->max - size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return allocation_new(context, pool, size, ret_address);
}

API cuMemAllocAsync(CUdeviceptr *ret_address, size_t size, CUstream stream)
{
    struct context *context;

    ENTER(enter_context("cuMemAllocAsync", &context));
    return leave(allocate(context, ret_address, size, default_pool(context->device), stream));
}

API cuMemAllocFromPoolAsync(CUdeviceptr *ret_address, size_t size, CUmemoryPool handle, CUstream stream)
{
    struct context *context;
    struct pool *pool;

    ENTER(enter_context("cuMemAllocFromPoolAsync", &context));
    pool = pool_get(handle);
    return leave(pool ? allocate(context, ret_address, size, pool, stream) : CUDA_ERROR_INVALID_VALUE);
}

API cuMemFreeAsync(CUdeviceptr address, CUstream handle)
{
    struct stream *stream;
    CUresult r = CUDA_SUCCESS;
    struct region *region;
    struct op *op;

    ENTER(enter_stream("cuMemFreeAsync", handle, &stream));
    if (stream->capture)
        r = capture_refuse(stream);
    if (r == CUDA_SUCCESS)
        r = capture_check_wait(stream);
    if (r != CUDA_SUCCESS)
        return leave(r);
    region = region_freeable(address);
    op = op_new(OP_FREE);
    if (!region || !op) {
        free(op);
        return leave(CUDA_ERROR_INVALID_VALUE);
    }
    region->freeing = true;
    op->region = region;
    return leave(stream_enqueue(stream, op));
}

/* ---- pools ---- */

API cuMemPoolCreate(CUmemoryPool *ret_pool, const CUmemPoolProps *p)
{
    struct pool *pool;

    ENTER(enter("cuMemPoolCreate"));
    if (!ret_pool || !p || p->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        p->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !device_is_valid(p->location.id))
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (p->handleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return leave(CUDA_ERROR_NOT_SUPPORTED);
    pool = pool_new(p->location.id, p->handleTypes);
    if (!pool)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    pool->max = p->maxSize;
    count(STANDIN_COUNTER_live_pools, 1);
    *ret_pool = pool->handle;
    return leave(CUDA_SUCCESS);
}

/* As a real driver: returns at once; memory that is live stays so until it is freed. */
API cuMemPoolDestroy(CUmemoryPool handle)
{
    struct pool *pool;

    ENTER(enter("cuMemPoolDestroy"));
    pool = pool_get(handle);
    if (!pool || pool == standin_devices[pool->device].default_pool)
        return leave(CUDA_ERROR_INVALID_VALUE);
    handle_free(handle);
    pool->destroyed = true;
    pool_end_if_unused(pool);
    count(STANDIN_COUNTER_live_pools, -1);
    return leave(CUDA_SUCCESS);
}

static CUresult enter_pool(const char *name, CUmemoryPool handle, struct pool **ret_pool)
{
    ENTER(enter(name));
    *ret_pool = pool_get(handle);
    return *ret_pool ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_VALUE);
}

API cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    struct pool *pool;

    ENTER(enter_pool("cuMemPoolSetAttribute", handle, &pool));
    /* Freed memory is the device's at once, so nothing of it has an effect. */
    return leave(value && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

API cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access, size_t n)
{
    struct pool *pool;

    ENTER(enter_pool("cuMemPoolSetAccess", handle, &pool));
    if (n && !access)
        return leave(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < n; i++) {
        int device = access[i].location.id;
        bool none = access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE;

        if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            (!none && access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) || (none && device == pool->device))
            return leave(CUDA_ERROR_INVALID_VALUE);
        if (!device_is_valid(device) || (device != pool->device && !devices_are_peers(device, pool->device)))
            return leave(CUDA_ERROR_INVALID_DEVICE);
        pool->readers = pool->writers = none ? pool->writers & ~(1U << device) : pool->writers | 1U << device;
    }
    return leave(CUDA_SUCCESS);
}

/* Maps another process's segment as a region like `how`, at an address of its own. Takes `fd` in every case; NULL: it
 * could not be mapped. */
static struct region *region_import(const struct region *how, int fd)
{
    struct region *region = malloc(sizeof(*region));

    if (!region)
        goto close_fd;
    *region = *how;
    region->address = address_reserve(how->size);
    region->buffer_id = buffer_id_next();
    if (!region->address)
        goto free_region;
    if (!segment_map(region->address, fd, how->size, PROT_READ | PROT_WRITE))
        goto free_address;
    close(fd);
    region_add(region);
    return region;

free_address:
    address_free(region->address, how->size);
free_region:
    free(region);
close_fd:
    close(fd);
    return NULL;
}

/* ---- pools of other processes ---- */

struct pool_file {
    char magic[16];
    unsigned char token[16];
    uint64_t id;
    CUuuid device;
    uint32_t handle_types;
    uint32_t zero;
};

struct pointer_data {
    char magic[8];
    uint64_t pool;
    uint64_t buffer_id;
    uint32_t slot;
    uint32_t zero[5];
    unsigned char token[16];
};

_Static_assert(sizeof(struct pointer_data) == sizeof(CUmemPoolPtrExportData), "pointers are 64 bytes");

static const char file_magic[16] = "kops pool 01", pointer_magic[8] = "pooled";

static int file_new(const struct pool *pool)
{
    struct pool_file file = {
        .id = pool->id, .device = standin_devices[pool->device].uuid, .handle_types = pool->handle_types};
    int fd = memfd_create("standin-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    memcpy(file.magic, file_magic, sizeof(file_magic));
    memcpy(file.token, pool->token, sizeof(pool->token));
    if (fd >= 0 && (write(fd, &file, sizeof(file)) != sizeof(file) ||
                    fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

API cuMemPoolExportToShareableHandle(void *ret_shareable, CUmemoryPool handle, CUmemAllocationHandleType type,
                                     unsigned long long flags)
{
    struct pool *pool;
    int fd;

    ENTER(enter("cuMemPoolExportToShareableHandle"));
    pool = pool_get(handle);
    if (!pool || !ret_shareable || flags || pool->imported || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !(pool->handle_types & (unsigned)type))
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (pool->fd < 0)
        pool->fd = file_new(pool);
    fd = pool->fd < 0 ? -1 : fcntl(pool->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return leave(CUDA_ERROR_OPERATING_SYSTEM);
    memcpy(ret_shareable, &fd, sizeof(fd));
    return leave(CUDA_SUCCESS);
}

/* The descriptor stays the caller's. */
API cuMemPoolImportFromShareableHandle(CUmemoryPool *ret_pool, void *shareable, CUmemAllocationHandleType type,
                                       unsigned long long flags)
{
    struct pool_file file;
    struct pool *pool;
    int device;

    ENTER(enter("cuMemPoolImportFromShareableHandle"));
    if (!ret_pool || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        pread((int)(intptr_t)shareable, &file, sizeof(file), 0) != sizeof(file) ||
        memcmp(file.magic, file_magic, sizeof(file_magic)) != 0)
        return leave(CUDA_ERROR_INVALID_VALUE);
    device = device_by_uuid(&file.device);
    if (device < 0)
        return leave(CUDA_ERROR_INVALID_DEVICE);
    pool = pool_new(device, file.handle_types);
    if (!pool)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    pool->imported = true;
    pool->id = file.id;
    memcpy(pool->token, file.token, sizeof(pool->token));
    count(STANDIN_COUNTER_live_pools, 1);
    *ret_pool = pool->handle;
    return leave(CUDA_SUCCESS);
}

/* ---- memory ---- */

API cuMemPoolExportPointer(CUmemPoolPtrExportData *ret_data, CUdeviceptr address)
{
    struct pointer_data data = {0};
    const struct region *region;

    ENTER(enter("cuMemPoolExportPointer"));
    region = region_find(address);
    if (!ret_data || !region || region->kind != REGION_ASYNC || region->freeing || region->address != address ||
        region->pool->fd < 0) /* as the real driver: the pool itself comes first */
        return leave(CUDA_ERROR_INVALID_VALUE);
    memcpy(data.magic, pointer_magic, sizeof(pointer_magic));
    memcpy(data.token, process_token(), sizeof(data.token));
    data.pool = region->pool->id;
    data.buffer_id = region->buffer_id;
    data.slot = region->slot;
    memcpy(ret_data, &data, sizeof(data));
    return leave(CUDA_SUCCESS);
}

/* The memory that the bytes name, if it is still that: a descriptor, or -1. */
static int open_pointer(const struct pool *pool, const struct pointer_data *data, struct segment_tail *ret_tail)
{
    static const uint32_t zero[5];

    if (memcmp(data->magic, pointer_magic, sizeof(pointer_magic)) != 0 || data->slot >= MAX_SLOTS ||
        memcmp(data->zero, zero, sizeof(zero)) != 0 || !data->buffer_id || data->pool != pool->id ||
        memcmp(data->token, pool->token, sizeof(pool->token)) != 0)
        return -1;
    return segment_open(data->token, data->slot, data->buffer_id, ret_tail);
}

static CUresult import(struct context *context, struct pool *pool, const struct pointer_data *data,
                       CUdeviceptr *ret_address)
{
    struct segment_tail tail;
    struct region *region;
    int fd = open_pointer(pool, data, &tail);

    if (fd < 0)
        return CUDA_ERROR_INVALID_VALUE;
    region = region_import(
        &(struct region){
            .kind = REGION_POOLED, .size = tail.size, .context = context, .device = pool->device, .pool = pool},
        fd);
    if (!region)
        return CUDA_ERROR_MAP_FAILED;
    pool_charge(pool, tail.size);
    count(STANDIN_COUNTER_live_pool_imports, 1);
    *ret_address = region->address;
    return CUDA_SUCCESS;
}

API cuMemPoolImportPointer(CUdeviceptr *ret_address, CUmemoryPool handle, CUmemPoolPtrExportData *bytes)
{
    struct context *context;
    struct pointer_data data;
    struct pool *pool;

    ENTER(enter_context("cuMemPoolImportPointer", &context));
    pool = pool_get(handle);
    if (!pool || !pool->imported || !ret_address || !bytes)
        return leave(CUDA_ERROR_INVALID_VALUE);
    memcpy(&data, bytes, sizeof(data));
    gate_pass_call(STANDIN_GATE_ipc_open);
    pool = pool_get(handle);
    return leave(pool ? import(context, pool, &data, ret_address) : CUDA_ERROR_INVALID_VALUE);
}

static void pool_unmap(struct region *region)
{
    region_remove(region);
    address_free(region->address, region->size);
    pool_refund(region->pool, region->size);
    count(STANDIN_COUNTER_live_pool_imports, -1);
    free(region);
}

/* ---- ranges ---- */

struct region *standin_regions;
struct slot standin_slots[MAX_SLOTS];

struct region *region_find(uint64_t address)
{
    for (struct region *r = standin_regions; r; r = r->next)
        if (address >= r->address && address - r->address < r->size)
            return r;
    return NULL;
}

/* Maps of virtual memory that lie side by side are as one to whoever uses them. */
struct region *region_find_range(uint64_t address, uint64_t size)
{
    struct region *first = region_find(address);

    for (struct region *r = first; r; r = region_find(r->address + r->size)) {
        const uint64_t here = r->size - (address - r->address);

        if (size <= here)
            return first;
        if (r->kind != REGION_VMM)
            return NULL;
        address += here;
        size -= here;
    }
    return NULL;
}

void region_add(struct region *region)
{
    region->next = standin_regions;
    standin_regions = region;
}

void region_remove(struct region *region)
{
    struct region **link = &standin_regions;

    while (*link != region)
        link = &(*link)->next;
    *link = region->next;
}

/* The slot of the same size that was freed last, so that address and handle bytes come back at once; else a new one. */
static struct slot *slot_find(int device, size_t mapped)
{
    struct slot *best = NULL, *unused = NULL;

    for (unsigned i = 0; i < MAX_SLOTS; i++) {
        struct slot *s = &standin_slots[i];

        if (!s->mapped) {
            unused = s;
            break; /* slots are taken from the front */
        }
        if (!s->live && s->mapped == mapped && s->device == device && (!best || s->freed_order > best->freed_order))
            best = s;
    }
    if (best || !unused)
        return best;
    unused->address = address_reserve(mapped);
    if (!unused->address)
        return NULL;
    unused->mapped = mapped;
    unused->device = device;
    return unused;
}

CUresult allocation_new(struct context *context, struct pool *pool, size_t size, CUdeviceptr *ret_address)
{
    enum region_kind kind = pool ? REGION_ASYNC : REGION_ALLOCATION;
    int device = pool ? pool->device : context->device;
    size_t mapped = round_up(size, GRANULARITY);
    const enum segment_kind named = !pool || pool->handle_types ? SEGMENT_NAMED : SEGMENT_POOLED;
    struct segment_tail tail = {.device = standin_devices[device].uuid, .handle_types = pool ? pool->handle_types : 0};
    struct region *region;
    struct slot *slot;
    CUresult r;

    if (!size || mapped < size)
        return size ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    r = device_charge(device, mapped);
    if (r != CUDA_SUCCESS)
        return r;
    r = CUDA_ERROR_OUT_OF_MEMORY;
    region = calloc(1, sizeof(*region));
    slot = slot_find(device, mapped);
    if (!region || !slot)
        goto free_region;
    tail.slot = (uint32_t)(slot - standin_slots);
    slot->fd = segment_new(&tail, size, named);
    if (slot->fd < 0)
        goto free_region;
    if (!segment_map(slot->address, slot->fd, size, PROT_READ | PROT_WRITE))
        goto close_fd;
    slot->live = true;
    slot->named = named == SEGMENT_NAMED;
    *region = (struct region){.kind = kind,
                              .address = slot->address,
                              .size = size,
                              .readable = true,
                              .writable = true,
                              .context = context,
                              .device = device,
                              .buffer_id = tail.buffer_id,
                              .slot = tail.slot,
                              .pool = pool};
    region_add(region);
    if (pool)
        pool_charge(pool, mapped);
    count(STANDIN_COUNTER_allocations, 1);
    count(STANDIN_COUNTER_live_allocations, 1);
    count(STANDIN_COUNTER_live_allocation_bytes, (int64_t)size);
    *ret_address = region->address;
    return CUDA_SUCCESS;

close_fd:
    if (named == SEGMENT_NAMED)
        segment_forget(tail.slot);
    close(slot->fd);
free_region:
    free(region);
    device_refund(device, mapped);
    return r;
}

static void allocation_free(struct region *region)
{
    struct slot *slot = &standin_slots[region->slot];
    static uint64_t order;

    if (slot->named)
        segment_forget(region->slot);
    region_remove(region);
    address_clear(slot->address, slot->mapped);
    close(slot->fd);
    slot->live = false;
    slot->freed_order = ++order;
    device_refund(region->device, slot->mapped);
    if (region->pool)
        pool_refund(region->pool, slot->mapped);
    count(STANDIN_COUNTER_live_allocations, -1);
    count(STANDIN_COUNTER_live_allocation_bytes, -(int64_t)region->size);
    free(region);
}

void allocation_end(struct region *region)
{
    if (region->kind == REGION_POOLED)
        pool_unmap(region);
    else
        allocation_free(region);
}

API cuMemAlloc_v2(CUdeviceptr *ret_address, size_t size)
{
    struct context *context;

    ENTER(enter_context("cuMemAlloc", &context));
    return leave(allocation_new(context, NULL, size, ret_address));
}

struct region *region_freeable(uint64_t address)
{
    static const char *const others[] = {
        [REGION_IPC] = "cuIpcCloseMemHandle", [REGION_VMM] = "cuMemUnmap", [REGION_HOST] = "cuMemHostUnregister"};
    struct region *region = region_find(address);

    if (!region || region->freeing)
        misuse(0, "%#llx is not allocated, or was freed before", (unsigned long long)address);
    else if (region->address != address)
        misuse(0, "%#llx lies inside an allocation", (unsigned long long)address);
    else if (region->kind != REGION_ALLOCATION && region->kind != REGION_ASYNC && region->kind != REGION_POOLED)
        misuse(0, "%#llx belongs to %s", (unsigned long long)address, others[region->kind]);
    else
        return region;
    return NULL;
}

API cuMemFree_v2(CUdeviceptr address)
{
    struct context *context;
    struct region *region;

    ENTER(enter_context("cuMemFree", &context));
    region = region_freeable(address);
    if (!region)
        return leave(CUDA_ERROR_INVALID_VALUE);
    region->freeing = true; /* another thread's free of it meanwhile is a double free */
    range_retire(region->context, region->address, region->size);
    allocation_end(region);
    return leave(CUDA_SUCCESS);
}

API cuMemGetInfo_v2(size_t *ret_free, size_t *ret_total)
{
    struct context *context;
    uint64_t total;

    ENTER(enter_context("cuMemGetInfo", &context));
    gate_pass_call(STANDIN_GATE_memory_info);
    total = control_memory_limit();
    *ret_total = total;
    *ret_free = total > standin_devices[context->device].used ? total - standin_devices[context->device].used : 0;
    return leave(CUDA_SUCCESS);
}

API cuMemGetAddressRange_v2(CUdeviceptr *ret_base, size_t *ret_size, CUdeviceptr address)
{
    const struct region *region;

    ENTER(enter_context("cuMemGetAddressRange", NULL));
    region = region_find(address);
    if (!region)
        return leave(CUDA_ERROR_NOT_FOUND);
    if (ret_base)
        *ret_base = region->address;
    if (ret_size)
        *ret_size = region->size;
    return leave(CUDA_SUCCESS);
}

/* ---- pointers ---- */

#define PUT(type, value)                                                                                               \
    do {                                                                                                               \
        type put = (value);                                                                                            \
        memcpy(data, &put, sizeof(put));                                                                               \
    } while (0)

static CUresult attribute_get(void *data, CUpointer_attribute attribute, const struct region *region)
{
    bool host = region->kind == REGION_HOST;

    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        PUT(CUcontext, region->kind == REGION_VMM || region->pool ? NULL : region->context->handle);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        PUT(unsigned, host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        PUT(int, 0);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        PUT(uint64_t, region->buffer_id);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        PUT(int, region->device);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        PUT(int, region->kind == REGION_ALLOCATION);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        PUT(uint64_t, region->vmm ? vmm_handle_types(region->vmm) : region->pool ? region->pool->handle_types : 0);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        PUT(CUmemoryPool, region->pool && !region->pool->destroyed ? region->pool->handle : NULL);
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

API cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr address)
{
    const struct region *region;

    ENTER(enter("cuPointerGetAttribute"));
    region = region_find(address);
    if (!data || !region)
        return leave(CUDA_ERROR_INVALID_VALUE);
    return leave(attribute_get(data, attribute, region));
}

/* ---- memory that other processes open by bytes ---- */

struct handle {
    char magic[8];
    int32_t pid;
    uint32_t slot;
    CUuuid device;
    unsigned char token[16];
    uint64_t zero[2];
};

_Static_assert(sizeof(struct handle) == CU_IPC_HANDLE_SIZE, "handles are 64 bytes");

static const char handle_magic[8] = "standin";

API cuIpcGetMemHandle(CUipcMemHandle *ret_handle, CUdeviceptr address)
{
    CUresult r = enter_context("cuIpcGetMemHandle", NULL);
    const struct region *region;
    struct handle handle = {.pid = getpid()};

    if (r != CUDA_SUCCESS)
        return r;
    region = region_find(address);
    /* A pool's memory, VMM maps and other processes' memory have no such handle. */
    if (!region || region->kind != REGION_ALLOCATION || region->freeing)
        return leave(CUDA_ERROR_INVALID_VALUE);
    memcpy(handle.magic, handle_magic, sizeof(handle_magic));
    memcpy(handle.token, process_token(), sizeof(handle.token));
    handle.slot = region->slot;
    handle.device = standin_devices[region->device].uuid;
    memcpy(ret_handle, &handle, sizeof(handle));
    return leave(CUDA_SUCCESS);
}

/* Each context has its own mapping of a handle, at its own address. */
static struct region *find_open(const struct context *context, const unsigned char *bytes)
{
    for (struct region *r = standin_regions; r; r = r->next)
        if (r->kind == REGION_IPC && r->context == context && !r->freeing &&
            memcmp(r->handle, bytes, CU_IPC_HANDLE_SIZE) == 0)
            return r;
    return NULL;
}

static CUresult map_exported(struct context *context, const unsigned char *bytes, struct region **ret_region)
{
    struct segment_tail tail;
    struct region *region;
    struct handle handle;
    int fd, device;

    memcpy(&handle, bytes, sizeof(handle));
    if (memcmp(handle.magic, handle_magic, sizeof(handle_magic)) != 0 || handle.slot >= MAX_SLOTS || handle.pid <= 0 ||
        handle.zero[0] || handle.zero[1])
        return CUDA_ERROR_INVALID_HANDLE;
    if (handle.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    device = device_by_uuid(&handle.device);
    if (device < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    fd = segment_open(handle.token, handle.slot, 0, &tail);
    if (fd < 0)
        return CUDA_ERROR_INVALID_HANDLE;
    region = region_import(&(struct region){.kind = REGION_IPC,
                                            .size = tail.size,
                                            .readable = true,
                                            .writable = true,
                                            .context = context,
                                            .device = device, /* a peer's memory stays the peer's */
                                            .opens = 1},
                           fd);
    if (!region)
        return CUDA_ERROR_MAP_FAILED;
    memcpy(region->handle, bytes, CU_IPC_HANDLE_SIZE);
    count(STANDIN_COUNTER_ipc_maps, 1);
    count(STANDIN_COUNTER_live_ipc_mappings, 1);
    *ret_region = region;
    return CUDA_SUCCESS;
}

API cuIpcOpenMemHandle_v2(CUdeviceptr *ret_address, CUipcMemHandle handle, unsigned flags)
{
    struct context *context;
    CUresult r = CUDA_SUCCESS;
    const unsigned char *bytes = (const unsigned char *)&handle;
    struct region *region;

    ENTER(enter_context("cuIpcOpenMemHandle", &context));
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || !ret_address)
        return leave(CUDA_ERROR_INVALID_VALUE);
    /* As a real driver: equal bytes are the same mapping while it is open, whatever their owner has done meanwhile. */
    region = find_open(context, bytes);
    if (!region) {
        gate_pass_call(STANDIN_GATE_ipc_open);
        region = find_open(context, bytes); /* opened by another thread meanwhile */
    }
    if (region) {
        region->opens++;
        count(STANDIN_COUNTER_ipc_hits, 1);
    } else {
        r = map_exported(context, bytes, &region);
        if (r != CUDA_SUCCESS)
            return leave(r);
    }
    *ret_address = region->address;
    return leave(CUDA_SUCCESS);
}

API cuIpcCloseMemHandle(CUdeviceptr address)
{
    struct context *context;
    struct region *region;

    ENTER(enter_context("cuIpcCloseMemHandle", &context));
    region = region_find(address);
    if (!region || region->kind != REGION_IPC || region->address != address || region->freeing)
        return leave(misuse(CUDA_ERROR_INVALID_VALUE, "%#llx is no open IPC mapping", (unsigned long long)address));
    if (--region->opens)
        return leave(CUDA_SUCCESS);
    region->freeing = true;
    range_retire(region->context, region->address, region->size);
    region_remove(region);
    address_free(region->address, region->size);
    count(STANDIN_COUNTER_live_ipc_mappings, -1);
    free(region);
    return leave(CUDA_SUCCESS);
}

/* ---- host memory that the device may use: registered, or the driver's own ---- */

enum protection { PROTECTION_NONE, PROTECTION_READ, PROTECTION_WRITE };

/* The least that every page of the range allows. */
static enum protection protection_of(uint64_t address, uint64_t size)
{
    enum protection least = PROTECTION_WRITE;
    uint64_t from, to, next = address, end = address + size;
    char mode[8], *line = NULL;
    size_t room = 0;
    FILE *maps = fopen("/proc/self/maps", "re");

    if (!maps)
        return PROTECTION_NONE;
    while (next < end && getline(&line, &room, maps) > 0) {
        if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) != 3 || to <= next)
            continue;
        if (from > next || mode[0] != 'r')
            break;
        if (mode[1] != 'w')
            least = PROTECTION_READ;
        next = to;
    }
    free(line);
    fclose(maps);
    return next >= end ? least : PROTECTION_NONE;
}

static bool overlaps_registered(uint64_t address, uint64_t size)
{
    for (const struct region *r = standin_regions; r; r = r->next)
        if (r->kind == REGION_HOST && address < r->address + r->size && r->address < address + size)
            return true;
    return false;
}

API cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags)
{
    struct context *context;
    uint64_t address = (uint64_t)(uintptr_t)pointer;
    enum protection protection;
    struct region *region;

    ENTER(enter_context("cuMemHostRegister", &context));
    if (!pointer || !size || address + size < address)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (overlaps_registered(address, size))
        return leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    protection = protection_of(address, size);
    if (protection == PROTECTION_NONE)
        return leave(misuse(CUDA_ERROR_INVALID_VALUE, "%p + %zu is not wholly mapped", pointer, size));
    if (protection == PROTECTION_READ && !(flags & CU_MEMHOSTREGISTER_READ_ONLY))
        return leave(CUDA_ERROR_INVALID_VALUE);
    region = calloc(1, sizeof(*region));
    if (!region)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    *region = (struct region){.kind = REGION_HOST,
                              .address = address,
                              .size = size,
                              .readable = true,
                              .writable = !(flags & CU_MEMHOSTREGISTER_READ_ONLY),
                              .context = context,
                              .device = context->device,
                              .buffer_id = buffer_id_next(),
                              .host_flags = flags | CU_MEMHOSTREGISTER_DEVICEMAP};
    region_add(region);
    count(STANDIN_COUNTER_host_registrations, 1);
    count(STANDIN_COUNTER_live_host_registrations, 1);
    return leave(CUDA_SUCCESS);
}

API cuMemHostUnregister(void *pointer)
{
    struct context *context;
    struct region *region;

    ENTER(enter_context("cuMemHostUnregister", &context));
    region = region_find((uint64_t)(uintptr_t)pointer);
    if (!region || region->kind != REGION_HOST || region->pinned || region->freeing)
        return leave(misuse(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "%p is not registered", pointer));
    if (region->address != (uint64_t)(uintptr_t)pointer)
        return leave(misuse(CUDA_ERROR_INVALID_VALUE, "%p is not the start of the registered range", pointer));
    if (protection_of(region->address, region->size) == PROTECTION_NONE)
        misuse(0, "%p was unmapped while it was registered", pointer);
    region->freeing = true;
    range_retire(region->context, region->address, region->size);
    region_remove(region);
    count(STANDIN_COUNTER_live_host_registrations, -1);
    free(region);
    return leave(CUDA_SUCCESS);
}

API cuMemHostGetDevicePointer_v2(CUdeviceptr *ret_address, void *pointer, unsigned flags)
{
    const struct region *region;

    ENTER(enter_context("cuMemHostGetDevicePointer", NULL));
    region = region_find((uint64_t)(uintptr_t)pointer);
    if (flags || !region || region->kind != REGION_HOST)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_address = (CUdeviceptr)(uintptr_t)pointer;
    return leave(CUDA_SUCCESS);
}

API cuMemHostGetFlags(unsigned *ret_flags, void *pointer)
{
    const struct region *region;

    ENTER(enter("cuMemHostGetFlags"));
    region = region_find((uint64_t)(uintptr_t)pointer);
    if (!ret_flags || !region || region->kind != REGION_HOST)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_flags = region->host_flags;
    return leave(CUDA_SUCCESS);
}

/* ---- memory of the driver's own ---- */

static CUresult pinned_new(const char *name, void **ret_pointer, size_t size, unsigned flags)
{
    struct context *context;
    struct region *region;
    void *pages;

    ENTER(enter_context(name, &context));
    if (!ret_pointer || !size || round_up(size, PAGE) < size || flags & ~7U)
        return leave(CUDA_ERROR_INVALID_VALUE);
    pages = mmap(NULL, round_up(size, PAGE), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    region = pages == MAP_FAILED ? NULL : calloc(1, sizeof(*region));
    if (!region) {
        if (pages != MAP_FAILED)
            munmap(pages, round_up(size, PAGE));
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *region = (struct region){.kind = REGION_HOST,
                              .address = (uint64_t)(uintptr_t)pages,
                              .size = size,
                              .readable = true,
                              .writable = true,
                              .context = context,
                              .device = context->device,
                              .buffer_id = buffer_id_next(),
                              .pinned = true,
                              .host_flags = flags | CU_MEMHOSTALLOC_DEVICEMAP};
    region_add(region);
    count(STANDIN_COUNTER_live_pinned, 1);
    *ret_pointer = pages;
    return leave(CUDA_SUCCESS);
}

API cuMemHostAlloc(void **ret_pointer, size_t size, unsigned flags)
{
    return pinned_new("cuMemHostAlloc", ret_pointer, size, flags);
}

API cuMemFreeHost(void *pointer)
{
    struct context *context;
    struct region *region;

    ENTER(enter_context("cuMemFreeHost", &context));
    region = region_find((uint64_t)(uintptr_t)pointer);
    if (!region || !region->pinned || region->address != (uint64_t)(uintptr_t)pointer || region->freeing)
        return leave(misuse(CUDA_ERROR_INVALID_VALUE, "%p is not the start of memory of cuMemHostAlloc", pointer));
    region->freeing = true;
    range_retire(region->context, region->address, region->size);
    region_remove(region);
    munmap(pointer, round_up(region->size, PAGE));
    count(STANDIN_COUNTER_live_pinned, -1);
    free(region);
    return leave(CUDA_SUCCESS);
}
