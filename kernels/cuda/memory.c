/* Owns the mappings of device memory: each struct backend_memory made here stands for exactly one. */
#include "memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device.h"

_Static_assert(sizeof(CUipcMemHandle) == BACKEND_IPC_HANDLE_SIZE, "the wire's handles are the driver's");

static struct backend_memory *memory_new(struct cuda_device *d, enum backend_memory_kind kind, uint64_t address,
                                         uint64_t size, bool writable, struct error *e)
{
    struct backend_memory *m = calloc(1, sizeof(*m));

    if (!m) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a mapping's record");
        return NULL;
    }
    m->kind = kind;
    m->address = address;
    m->size = size;
    m->writable = writable;
    m->device = &d->base;
    return m;
}

/* The driver answers a handle that it cannot open with various codes, even "unknown"; none of them says that the
 * context broke, which the next call would show. */
static int fail_open(struct cuda_device *d, CUresult r, struct error *e)
{
    if (r == CUDA_ERROR_OUT_OF_MEMORY || (r != CUDA_ERROR_UNKNOWN && cuda_result_is_sticky(r)))
        return cuda_fail(d, r, "cuIpcOpenMemHandle", e);
    if (r == CUDA_ERROR_NOT_SUPPORTED || r == CUDA_ERROR_NOT_PERMITTED) {
        error_set(e, ERROR_UNSUPPORTED, "this machine's driver does not share device memory between processes");
    } else {
        error_set(e, ERROR_INVALID_HANDLE,
                  "the IPC handle could not be opened: its memory was freed, its owner has ended, it is of another "
                  "GPU, it was exported by the daemon itself, or the two processes see different pid namespaces");
    }
    return error_detail_text(e, "driver", cuda_result_name(r));
}

static int check_opened(struct cuda_device *d, CUdeviceptr address, uint64_t declared, uint64_t *ret_size,
                        struct error *e)
{
    CUdeviceptr base;
    size_t bytes;
    uint64_t usable;
    int ordinal;

    if (CUDA_CALL(d, e, PointerGetAttribute, &ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) < 0)
        return -1;
    if (ordinal != d->ordinal)
        return error_set(e, ERROR_INVALID_HANDLE, "the IPC handle is of another GPU than %s; say its own device",
                         d->base.info.uuid);
    if (CUDA_CALL(d, e, MemGetAddressRange, &base, &bytes, address) < 0)
        return -1;
    usable = bytes - (uint64_t)(address - base);
    if (declared > usable) {
        error_set(e, ERROR_OUT_OF_BOUNDS, "the memory behind the handle is smaller than declared");
        error_detail_number(e, "needed", (int64_t)declared);
        return error_detail_number(e, "size", (int64_t)usable);
    }
    *ret_size = usable;
    return 0;
}

int cuda_memory_import(struct backend_device *base, const struct backend_import *import,
                       struct backend_memory **ret_memory, struct error *e)
{
    struct cuda_device *d = cuda_device(base);
    struct backend_memory *m;
    CUipcMemHandle handle;
    CUdeviceptr address;
    uint64_t size = 0;
    CUresult r;

    if (import->kind != MEMORY_CUDA_IPC)
        return error_set(e, ERROR_UNSUPPORTED, "this device opens cuda_ipc handles only");
    if (cuda_enter(d, e) < 0)
        return -1;
    memcpy(&handle, import->handle, sizeof(handle));
    r = cuda.IpcOpenMemHandle(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (r != CUDA_SUCCESS)
        return fail_open(d, r, e);
    if (check_opened(d, address, import->size, &size, e) < 0)
        goto close_handle;
    m = memory_new(d, MEMORY_CUDA_IPC, address, size, import->writable, e);
    if (!m)
        goto close_handle;
    *ret_memory = m;
    return 0;

close_handle:
    cuda.IpcCloseMemHandle(address);
    return -1;
}

static CUmemAllocationProp shareable_on(const struct cuda_device *d)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = d->ordinal},
    };
}

/* `size` rounded up to what the driver allocates. */
static int round_size(struct cuda_device *d, const CUmemAllocationProp *prop, uint64_t size, uint64_t *ret_size,
                      struct error *e)
{
    size_t granularity;

    if (CUDA_CALL(d, e, MemGetAllocationGranularity, &granularity, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) < 0)
        return -1;
    if (size > INT64_MAX - granularity)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no device has that much memory");
    *ret_size = (size + granularity - 1) / granularity * granularity;
    return 0;
}

/* Nobody may see what other memory held before. */
static int zero(struct cuda_device *d, CUdeviceptr address, uint64_t size, struct error *e)
{
    if (CUDA_CALL(d, e, MemsetD8Async, address, 0, size, d->service) < 0)
        return -1;
    return CUDA_CALL(d, e, StreamSynchronize, d->service);
}

/* Maps the allocation where the device may read and write it. */
static int map(struct cuda_device *d, CUmemGenericAllocationHandle handle, uint64_t size, CUdeviceptr *ret_address,
               struct error *e)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = d->ordinal},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr address;

    if (CUDA_CALL(d, e, MemAddressReserve, &address, size, 0, 0, 0) < 0)
        return -1;
    if (CUDA_CALL(d, e, MemMap, address, size, 0, handle, 0) < 0)
        goto free_address;
    if (CUDA_CALL(d, e, MemSetAccess, address, size, &access, 1) < 0)
        goto unmap;
    if (zero(d, address, size, e) < 0)
        goto unmap;
    *ret_address = address;
    return 0;

unmap:
    cuda.MemUnmap(address, size);
free_address:
    cuda.MemAddressFree(address, size);
    return -1;
}

static int export_fd(struct cuda_device *d, CUmemGenericAllocationHandle handle, int *ret_fd, struct error *e)
{
    int fd = -1;

    if (CUDA_CALL(d, e, MemExportToShareableHandle, &fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) < 0)
        return -1;
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
        close(fd);
        return error_set(e, ERROR_INTERNAL, "fcntl on an exported descriptor: %s", strerror(errno));
    }
    *ret_fd = fd;
    return 0;
}

int cuda_memory_alloc(struct backend_device *base, uint64_t size, struct backend_memory **ret_memory, int *ret_fd,
                      struct error *e)
{
    struct cuda_device *d = cuda_device(base);
    CUmemAllocationProp prop = shareable_on(d);
    CUmemGenericAllocationHandle handle;
    struct backend_memory *m;
    CUdeviceptr address;
    uint64_t rounded = 0;
    int fd = -1;

    if (cuda_enter(d, e) < 0 || round_size(d, &prop, size, &rounded, e) < 0)
        return -1;
    if (CUDA_CALL(d, e, MemCreate, &handle, rounded, &prop, 0) < 0)
        return -1;
    if (map(d, handle, rounded, &address, e) < 0)
        goto release_handle;
    if (export_fd(d, handle, &fd, e) < 0)
        goto unmap;
    m = memory_new(d, MEMORY_CUDA_VMM, address, rounded, true, e);
    if (!m)
        goto close_fd;
    cuda.MemRelease(handle); /* the mapping and the descriptor keep the memory */
    *ret_memory = m;
    *ret_fd = fd;
    return 0;

close_fd:
    close(fd);
unmap:
    cuda.MemUnmap(address, rounded);
    cuda.MemAddressFree(address, rounded);
release_handle:
    cuda.MemRelease(handle);
    return -1;
}

void cuda_memory_close(struct backend_memory *memory)
{
    struct cuda_device *d = cuda_device(memory->device);
    struct error ignored;

    /* A broken context gives nothing back before the process ends. */
    if (cuda_enter(d, &ignored) == 0) {
        if (memory->kind == MEMORY_CUDA_IPC) {
            cuda.IpcCloseMemHandle(memory->address);
        } else {
            cuda.MemUnmap(memory->address, memory->size);
            cuda.MemAddressFree(memory->address, memory->size);
        }
    }
    free(memory);
}
