/* Host memory that the device may use: registered (cuMemHostRegister) or the driver's own (cuMemHostAlloc). Its device
 * address is its own. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "standin.h"

enum protection { PROTECTION_NONE, PROTECTION_READ, PROTECTION_WRITE };

/* The least that every page of the range allows. */
static enum protection protection_of(uint64_t address, uint64_t size)
{
    enum protection least = PROTECTION_WRITE;
    uint64_t from, to, next = address, end = address + size;
    char mode[8], *line = NULL;
    size_t room = 0;
    FILE *maps = fopen("/proc/self/maps", "re");

    if (!maps)
        return PROTECTION_NONE;
    while (next < end && getline(&line, &room, maps) > 0) {
        if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) != 3 || to <= next)
            continue;
        if (from > next || mode[0] != 'r')
            break;
        if (mode[1] != 'w')
            least = PROTECTION_READ;
        next = to;
    }
    free(line);
    fclose(maps);
    return next >= end ? least : PROTECTION_NONE;
}

static bool overlaps_registered(uint64_t address, uint64_t size)
{
    for (const struct region *r = standin_regions; r; r = r->next)
        if (r->kind == REGION_HOST && address < r->address + r->size && r->address < address + size)
            return true;
    return false;
}

API cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags)
{
    struct context *context;
    uint64_t address = (uint64_t)(uintptr_t)pointer;
    enum protection protection;
    struct region *region;

    ENTER(enter_context("cuMemHostRegister", &context));
    if (!pointer || !size || address + size < address)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (overlaps_registered(address, size))
        return leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    protection = protection_of(address, size);
    if (protection == PROTECTION_NONE)
        return leave(misuse(CUDA_ERROR_INVALID_VALUE, "%p + %zu is not wholly mapped", pointer, size));
    if (protection == PROTECTION_READ && !(flags & CU_MEMHOSTREGISTER_READ_ONLY))
        return leave(CUDA_ERROR_INVALID_VALUE);
    region = calloc(1, sizeof(*region));
    if (!region)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    *region = (struct region){.kind = REGION_HOST,
                              .address = address,
                              .size = size,
                              .readable = true,
                              .writable = !(flags & CU_MEMHOSTREGISTER_READ_ONLY),
                              .context = context,
                              .device = context->device,
                              .buffer_id = buffer_id_next(),
                              .host_flags = flags | CU_MEMHOSTREGISTER_DEVICEMAP};
    region_add(region);
    count(STANDIN_COUNTER_host_registrations, 1);
    count(STANDIN_COUNTER_live_host_registrations, 1);
    return leave(CUDA_SUCCESS);
}

API cuMemHostUnregister(void *pointer)
{
    struct context *context;
    struct region *region;

    ENTER(enter_context("cuMemHostUnregister", &context));
    region = region_find((uint64_t)(uintptr_t)pointer);
    if (!region || region->kind != REGION_HOST || region->pinned || region->freeing)
        return leave(misuse(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "%p is not registered", pointer));
    if (region->address != (uint64_t)(uintptr_t)pointer)
        return leave(misuse(CUDA_ERROR_INVALID_VALUE, "%p is not the start of the registered range", pointer));
    if (protection_of(region->address, region->size) == PROTECTION_NONE)
        misuse(0, "%p was unmapped while it was registered", pointer);
    region->freeing = true;
    range_retire(region->context, region->address, region->size);
    region_remove(region);
    count(STANDIN_COUNTER_live_host_registrations, -1);
    free(region);
    return leave(CUDA_SUCCESS);
}

API cuMemHostGetDevicePointer_v2(CUdeviceptr *ret_address, void *pointer, unsigned flags)
{
    const struct region *region;

    ENTER(enter_context("cuMemHostGetDevicePointer", NULL));
    region = region_find((uint64_t)(uintptr_t)pointer);
    if (flags || !region || region->kind != REGION_HOST)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_address = (CUdeviceptr)(uintptr_t)pointer;
    return leave(CUDA_SUCCESS);
}

API cuMemHostGetFlags(unsigned *ret_flags, void *pointer)
{
    const struct region *region;

    ENTER(enter("cuMemHostGetFlags"));
    region = region_find((uint64_t)(uintptr_t)pointer);
    if (!ret_flags || !region || region->kind != REGION_HOST)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_flags = region->host_flags;
    return leave(CUDA_SUCCESS);
}

/* ---- memory of the driver's own ---- */

static CUresult pinned_new(const char *name, void **ret_pointer, size_t size, unsigned flags)
{
    struct context *context;
    struct region *region;
    void *pages;

    ENTER(enter_context(name, &context));
    if (!ret_pointer || !size || round_up(size, PAGE) < size || flags & ~7U)
        return leave(CUDA_ERROR_INVALID_VALUE);
    pages = mmap(NULL, round_up(size, PAGE), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    region = pages == MAP_FAILED ? NULL : calloc(1, sizeof(*region));
    if (!region) {
        if (pages != MAP_FAILED)
            munmap(pages, round_up(size, PAGE));
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *region = (struct region){.kind = REGION_HOST,
                              .address = (uint64_t)(uintptr_t)pages,
                              .size = size,
                              .readable = true,
                              .writable = true,
                              .context = context,
                              .device = context->device,
                              .buffer_id = buffer_id_next(),
                              .pinned = true,
                              .host_flags = flags | CU_MEMHOSTALLOC_DEVICEMAP};
    region_add(region);
    count(STANDIN_COUNTER_live_pinned, 1);
    *ret_pointer = pages;
    return leave(CUDA_SUCCESS);
}

API cuMemHostAlloc(void **ret_pointer, size_t size, unsigned flags)
{
    return pinned_new("cuMemHostAlloc", ret_pointer, size, flags);
}

API cuMemFreeHost(void *pointer)
{
    struct context *context;
    struct region *region;

    ENTER(enter_context("cuMemFreeHost", &context));
    region = region_find((uint64_t)(uintptr_t)pointer);
    if (!region || !region->pinned || region->address != (uint64_t)(uintptr_t)pointer || region->freeing)
        return leave(misuse(CUDA_ERROR_INVALID_VALUE, "%p is not the start of memory of cuMemHostAlloc", pointer));
    region->freeing = true;
    range_retire(region->context, region->address, region->size);
    region_remove(region);
    munmap(pointer, round_up(region->size, PAGE));
    count(STANDIN_COUNTER_live_pinned, -1);
    free(region);
    return leave(CUDA_SUCCESS);
}
