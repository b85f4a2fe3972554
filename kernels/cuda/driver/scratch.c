/* Owns the pool that scratch memory comes from. */
#include "scratch.h"

enum { POOL_KEEP_BYTES = 512 << 20 /* scratch that stays with the daemon between jobs, at least */ };

/* Only a driver too old to know the question may leave it open. */
int cuda_scratch_describe(struct cuda_device *d, struct error *e)
{
    int supported = 0;
    CUresult r = cuda.DeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, d->ordinal);

    d->has_pools = r == CUDA_SUCCESS && supported;
    return r == CUDA_ERROR_INVALID_VALUE ? 0 : cuda_check(NULL, r, "cuDeviceGetAttribute", e);
}

/* The device's default pool would do; one of our own lets the daemon decide how much it keeps. */
int cuda_scratch_open(struct cuda_device *d, struct error *e)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = d->ordinal}};
    cuuint64_t keep = d->repack_bytes > POOL_KEEP_BYTES ? d->repack_bytes : POOL_KEEP_BYTES;

    if (!d->has_pools)
        return 0;
    if (CUDA_OPEN_CALL(d, e, MemPoolCreate, &d->pool, &props) < 0)
        return -1;
    if (CUDA_OPEN_CALL(d, e, MemPoolSetAttribute, d->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep) < 0) {
        cuda_scratch_close(d);
        return -1;
    }
    return 0;
}

void cuda_scratch_close(struct cuda_device *d)
{
    if (d->pool)
        cuda_on(d)->MemPoolDestroy(d->pool);
    d->pool = NULL;
}

int cuda_scratch_alloc(struct cuda_device *d, CUstream stream, uint64_t bytes, CUdeviceptr *ret_address,
                       struct error *e)
{
    return CUDA_CALL(d, e, MemAllocFromPoolAsync, ret_address, bytes, d->pool, stream);
}

void cuda_scratch_free(const struct cuda_device *d, CUstream stream, CUdeviceptr address)
{
    if (address)
        cuda_on(d)->MemFreeAsync(address, stream);
}

int cuda_scratch_take(struct cuda_device *d, CUstream stream, uint64_t bytes, CUdeviceptr *ret_address, struct error *e)
{
    unsigned long long used = atomic_load_explicit(&d->repack_used, memory_order_relaxed);

    do {
        if (bytes > d->repack_bytes || used > d->repack_bytes - bytes)
            return error_set(e, ERROR_OUT_OF_MEMORY,
                             "copies of operands would take %llu bytes, and %llu of %llu are in use on %s",
                             (unsigned long long)bytes, used, (unsigned long long)d->repack_bytes, d->base.info.name);
    } while (!atomic_compare_exchange_weak(&d->repack_used, &used, used + bytes));
    if (cuda_scratch_alloc(d, stream, bytes, ret_address, e) == 0)
        return 0;
    atomic_fetch_sub(&d->repack_used, bytes);
    return -1;
}

void cuda_scratch_give(struct cuda_device *d, CUstream stream, CUdeviceptr address, uint64_t bytes)
{
    if (!address)
        return;
    cuda_scratch_free(d, stream, address);
    atomic_fetch_sub(&d->repack_used, bytes);
}
