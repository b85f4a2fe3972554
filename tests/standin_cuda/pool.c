/* Memory in stream order, and the pools that it is of. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pool.h"

struct pool *pool_get(CUmemoryPool handle)
{
    return handle_get(HANDLE_POOL, handle);
}

struct pool *pool_new(int device, unsigned handle_types)
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

void pool_charge(struct pool *pool, uint64_t bytes)
{
    pool->regions++;
    pool->used += bytes;
}

void pool_refund(struct pool *pool, uint64_t bytes)
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
