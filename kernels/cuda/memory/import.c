/* Chooses among the kinds of device memory. */
#include "import.h"

#include <stdlib.h>

#include "ipc.h"
#include "peer.h"
#include "pool.h"
#include "vmm.h"

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
        result = cuda_ipc_import(d, import, &m, e);
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

    cuda_peer_forget(m);
    /* A broken context gives nothing back before the process ends. */
    if (cuda_enter(d, &ignored) == 0) {
        if (memory->kind == MEMORY_CUDA_IPC)
            cuda_ipc_close(d, memory->address);
        else if (memory->kind == MEMORY_CUDA_VMM)
            cuda_vmm_close(m);
        else
            cuda_pool_close(d, m);
    }
    free(m->chunks);
    free(m);
}
