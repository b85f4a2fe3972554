/* The ranges that devices may touch, and memory that the program allocates. */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "pool.h"

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

struct region *region_import(const struct region *how, int fd)
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
    gate_pass_call(STANDIN_GATE_allocate);
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
