/* Legacy IPC handles.
 *
 * The 64 bytes name the process and the slot of cuMemAlloc, and nothing that changes when the slot is used again: so
 * they repeat after free and malloc. An importer gets what the slot holds at that moment. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "standin.h"

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
