/* Opens and closes CUDA IPC handles. */
#include "ipc.h"

#include <string.h>

_Static_assert(sizeof(CUipcMemHandle) == BACKEND_IPC_HANDLE_SIZE, "the wire's handles are the driver's");

int cuda_ipc_import(struct cuda_device *d, const struct backend_import *import, struct cuda_memory **ret_memory,
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

CUresult cuda_ipc_open(struct cuda_device *d, const struct cuda_memory *m, CUdeviceptr *ret_address)
{
    return cuda_on(d)->IpcOpenMemHandle(ret_address, m->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

void cuda_ipc_close(struct cuda_device *d, CUdeviceptr address)
{
    CUresult r = cuda_on(d)->IpcCloseMemHandle(address);

    if (r != CUDA_SUCCESS)
        cuda_device_break(d, r);
}
