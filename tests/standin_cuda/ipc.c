/* Legacy IPC handles.
 *
 * Each exporting process has a table, a memfd, with an entry for every slot of cuMemAlloc. The 64 bytes name the
 * process, its table and the slot, and nothing that changes when the slot is used again: so they repeat after free and
 * malloc. An importer reads the entry at that moment, opens the memory behind it, and checks that both agree. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "standin.h"

struct export_entry {
    _Atomic uint32_t live;
    int32_t fd;
    uint64_t buffer_id;
};

struct export_table {
    char magic[16];
    unsigned char token[16];
    struct export_entry slots[MAX_SLOTS];
};

struct handle {
    char magic[8];
    int32_t pid;
    int32_t table_fd;
    uint32_t slot;
    uint32_t reserved;
    CUuuid device;
    unsigned char token[16];
    uint64_t zero;
};

_Static_assert(sizeof(struct handle) == CU_IPC_HANDLE_SIZE, "handles are 64 bytes");

static const char table_magic[16] = "kops export 01", handle_magic[8] = "standin";
static struct export_table *table;
static int table_fd = -1;

bool export_table_ready(void)
{
    if (table)
        return true;
    table_fd = memfd_create("standin-exports", MFD_CLOEXEC);
    if (table_fd < 0)
        return false;
    if (ftruncate(table_fd, sizeof(*table)) == 0) {
        void *mapped = mmap(NULL, sizeof(*table), PROT_READ | PROT_WRITE, MAP_SHARED, table_fd, 0);

        if (mapped != MAP_FAILED) {
            table = mapped;
            memcpy(table->magic, table_magic, sizeof(table_magic));
            memcpy(table->token, process_token(), sizeof(table->token));
            return true;
        }
    }
    close(table_fd);
    return false;
}

void export_slot_set(unsigned slot, int fd, const struct segment_tail *tail)
{
    table->slots[slot].fd = fd;
    table->slots[slot].buffer_id = tail->buffer_id;
    table->slots[slot].live = 1;
}

void export_slot_clear(unsigned slot)
{
    if (table)
        table->slots[slot].live = 0;
}

API cuIpcGetMemHandle(CUipcMemHandle *ret_handle, CUdeviceptr address)
{
    struct context *context;
    CUresult r = enter_context("cuIpcGetMemHandle", &context);
    const struct region *region;
    struct handle handle = {.pid = getpid(), .table_fd = table_fd};

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
    count(STANDIN_COUNTER_ipc_exports, 1);
    return leave(CUDA_SUCCESS);
}

int open_foreign(int pid, int fd, int mode)
{
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
    return open(path, mode | O_CLOEXEC);
}

/* The live memory that the handle names at this moment: a descriptor and its tail, or -1. */
static int open_exported(const struct handle *handle, struct segment_tail *ret_tail)
{
    struct export_entry entry = {0};
    unsigned char head[32];
    int fd = open_foreign(handle->pid, handle->table_fd, O_RDONLY);
    bool found;

    if (fd < 0)
        return -1;
    found = pread(fd, head, sizeof(head), 0) == sizeof(head) && memcmp(head, table_magic, 16) == 0 &&
            memcmp(head + 16, handle->token, 16) == 0 &&
            pread(fd, &entry, sizeof(entry),
                  (off_t)(offsetof(struct export_table, slots) + handle->slot * sizeof(entry))) == sizeof(entry) &&
            entry.live;
    close(fd);
    fd = found ? open_foreign(handle->pid, entry.fd, O_RDWR) : -1;
    if (fd < 0)
        return -1;
    /* Between the two looks the slot may have been freed and its descriptor's number used for something else. */
    if (segment_read_tail(fd, ret_tail) && memcmp(ret_tail->token, handle->token, 16) == 0 &&
        ret_tail->slot == handle->slot && !ret_tail->vmm && ret_tail->buffer_id == entry.buffer_id)
        return fd;
    close(fd);
    return -1;
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
        handle.reserved || handle.zero)
        return CUDA_ERROR_INVALID_HANDLE;
    if (handle.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    device = device_by_uuid(&handle.device);
    if (device < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    fd = open_exported(&handle, &tail);
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
    CUresult r = enter_context("cuIpcOpenMemHandle", &context);
    const unsigned char *bytes = (const unsigned char *)&handle;
    struct region *region;

    if (r != CUDA_SUCCESS)
        return r;
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
#undef cuIpcOpenMemHandle
API_ALIAS(cuIpcOpenMemHandle_v2)
CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *ret_address, CUipcMemHandle handle, unsigned flags);

API cuIpcCloseMemHandle(CUdeviceptr address)
{
    struct context *context;
    CUresult r = enter_context("cuIpcCloseMemHandle", &context);
    struct region *region;

    if (r != CUDA_SUCCESS)
        return r;
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
