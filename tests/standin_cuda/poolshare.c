/* Pools of other processes: a descriptor names the pool, 64 bytes name memory of it.
 *
 * The descriptor is a small file that tells what the pool is. The bytes say which descriptor of the exporter is the
 * memory, and what must be found behind it: what was freed since is refused. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pool.h"

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

void pool_unmap(struct region *region)
{
    region_remove(region);
    address_free(region->address, region->size);
    pool_refund(region->pool, region->size);
    count(STANDIN_COUNTER_live_pool_imports, -1);
    free(region);
}
