/* Owns the mappings of device memory: each struct cuda_memory stands for exactly one. Memory of IPC handles is opened
 * here, virtual memory in memory_vmm.c, that of pools in memory_pool.c. */
#include "memory.h"

#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "peer.h"

_Static_assert(sizeof(CUipcMemHandle) == BACKEND_IPC_HANDLE_SIZE, "the wire's handles are the driver's");

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

int cuda_memory_check(struct cuda_device *d, CUdeviceptr address, uint64_t declared, uint64_t *ret_size,
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

static bool has(const struct cuda_device *d, CUdevice_attribute which, int bits)
{
    int value = 0;

    return cuda.DeviceGetAttribute(&value, which, d->ordinal) == CUDA_SUCCESS && (value & bits);
}

unsigned cuda_memory_kinds(struct backend_device *base)
{
    const struct cuda_device *d = cuda_device(base);
    unsigned kinds = 1U << MEMORY_CUDA_IPC;

    if (has(d, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, ~0))
        kinds |= 1U << MEMORY_CUDA_VMM;
    if (cuda_pools_import() &&
        has(d, CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        kinds |= 1U << MEMORY_CUDA_POOL;
    return kinds;
}

void cuda_memory_close_handle(struct cuda_device *d, CUdeviceptr address)
{
    CUresult r = cuda_on(d)->IpcCloseMemHandle(address);

    if (r != CUDA_SUCCESS)
        cuda_device_break(d, r);
}

void cuda_memory_close(struct backend_memory *memory)
{
    struct cuda_memory *m = cuda_memory(memory);
    struct cuda_device *d = cuda_device(memory->device);
    struct error ignored;

    cuda_peer_forget(m);
    /* A broken context gives nothing back before the process ends. */
    if (cuda_enter(d, &ignored) == 0) {
        if (memory->kind == MEMORY_CUDA_IPC)
            cuda_memory_close_handle(d, memory->address);
        else if (memory->kind == MEMORY_CUDA_VMM)
            cuda_vmm_close(m);
        else
            cuda_pool_close(d, m);
    }
    free(m->chunks);
    free(m);
}
