/* Virtual memory management: allocations without an address, addresses without memory, and maps of one at the other.
 * Nothing is accessible before cuMemSetAccess. A descriptor of an allocation is a duplicate of its memfd. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "standin.h"

struct vmm_handle {
    CUmemGenericAllocationHandle handle; /* valid while references > 0 */
    unsigned references;                 /* the program's */
    unsigned maps;
    int fd;
    int device;
    uint64_t size;
    unsigned handle_types;
    bool imported;
};

struct reservation {
    struct reservation *next;
    uint64_t address, size;
};

static struct reservation *reservations;

static CUresult properties_check(const CUmemAllocationProp *p)
{
    if (!p || p->type != CU_MEM_ALLOCATION_TYPE_PINNED || p->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_is_valid(p->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    return CUDA_SUCCESS;
}

static CUresult enter_unbroken(const char *name)
{
    ENTER(enter(name));
    for (int i = 0; i < standin_device_count; i++)
        if (context_any(i) && context_any(i)->broken)
            return leave(context_any(i)->error);
    return CUDA_SUCCESS;
}

API cuMemGetAllocationGranularity(size_t *ret_size, const CUmemAllocationProp *properties,
                                  CUmemAllocationGranularity_flags option)
{
    CUresult r;

    ENTER(enter_unbroken("cuMemGetAllocationGranularity"));
    r = properties_check(properties);
    if (r == CUDA_SUCCESS && (unsigned)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
        r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS)
        *ret_size = GRANULARITY;
    return leave(r);
}

/* ---- allocations ---- */

static CUresult publish(struct vmm_handle *vmm, CUmemGenericAllocationHandle *ret_handle)
{
    void *handle = handle_new(HANDLE_VMM, vmm);

    if (!handle)
        return CUDA_ERROR_OUT_OF_MEMORY;
    vmm->handle = *ret_handle = (CUmemGenericAllocationHandle)(uintptr_t)handle;
    vmm->references = 1;
    count(STANDIN_COUNTER_live_vmm_handles, 1);
    return CUDA_SUCCESS;
}

static struct vmm_handle *vmm_get(CUmemGenericAllocationHandle handle)
{
    return handle_get(HANDLE_VMM, (const void *)(uintptr_t)handle);
}

unsigned vmm_handle_types(const struct vmm_handle *vmm)
{
    return vmm->handle_types;
}

static void vmm_free_if_unused(struct vmm_handle *vmm)
{
    if (vmm->references || vmm->maps)
        return;
    if (!vmm->imported)
        device_refund(vmm->device, vmm->size);
    close(vmm->fd);
    free(vmm);
}

API cuMemCreate(CUmemGenericAllocationHandle *ret_handle, size_t size, const CUmemAllocationProp *properties,
                unsigned long long flags)
{
    CUresult r;
    struct segment_tail tail = {.vmm = 1};
    struct vmm_handle *vmm;

    ENTER(enter_unbroken("cuMemCreate"));
    r = properties_check(properties);
    if (r == CUDA_SUCCESS && (flags || !size || size % GRANULARITY))
        r = CUDA_ERROR_INVALID_VALUE;
    if (r != CUDA_SUCCESS)
        return leave(r);
    r = device_charge(properties->location.id, size);
    if (r != CUDA_SUCCESS)
        return leave(r);
    r = CUDA_ERROR_OUT_OF_MEMORY;
    vmm = calloc(1, sizeof(*vmm));
    if (!vmm)
        goto refund;
    tail.device = standin_devices[properties->location.id].uuid;
    tail.handle_types = (uint32_t)properties->requestedHandleTypes;
    *vmm = (struct vmm_handle){.fd = segment_new(&tail, size, SEGMENT_PASSED),
                               .device = properties->location.id,
                               .size = size,
                               .handle_types = tail.handle_types};
    if (vmm->fd < 0)
        goto free_vmm;
    r = publish(vmm, ret_handle);
    if (r != CUDA_SUCCESS)
        goto close_fd;
    return leave(CUDA_SUCCESS);

close_fd:
    close(vmm->fd);
free_vmm:
    free(vmm);
refund:
    device_refund(properties->location.id, size);
    return leave(r);
}

API cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct vmm_handle *vmm;

    ENTER(enter_unbroken("cuMemRelease"));
    vmm = vmm_get(handle);
    if (!vmm)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (--vmm->references == 0) {
        handle_free((const void *)(uintptr_t)handle);
        count(STANDIN_COUNTER_live_vmm_handles, -1);
        vmm_free_if_unused(vmm);
    }
    return leave(CUDA_SUCCESS);
}

API cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *ret_handle, void *pointer)
{
    struct region *region;

    ENTER(enter_unbroken("cuMemRetainAllocationHandle"));
    region = region_find((uint64_t)(uintptr_t)pointer);
    if (!region || region->kind != REGION_VMM)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (!region->vmm->references)
        return leave(publish(region->vmm, ret_handle));
    region->vmm->references++;
    *ret_handle = region->vmm->handle;
    return leave(CUDA_SUCCESS);
}

API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *ret_properties, CUmemGenericAllocationHandle handle)
{
    struct vmm_handle *vmm;

    ENTER(enter_unbroken("cuMemGetAllocationPropertiesFromHandle"));
    vmm = vmm_get(handle);
    if (!vmm)
        return leave(CUDA_ERROR_INVALID_VALUE);
    *ret_properties = (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                            .requestedHandleTypes = (CUmemAllocationHandleType)vmm->handle_types,
                                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = vmm->device}};
    return leave(CUDA_SUCCESS);
}

API cuMemExportToShareableHandle(void *ret_shareable, CUmemGenericAllocationHandle handle,
                                 CUmemAllocationHandleType type, unsigned long long flags)
{
    struct vmm_handle *vmm;
    int fd;

    ENTER(enter_unbroken("cuMemExportToShareableHandle"));
    vmm = vmm_get(handle);
    if (!vmm || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !(vmm->handle_types & (unsigned)type))
        return leave(CUDA_ERROR_INVALID_VALUE);
    fd = fcntl(vmm->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        return leave(CUDA_ERROR_OPERATING_SYSTEM);
    memcpy(ret_shareable, &fd, sizeof(fd));
    return leave(CUDA_SUCCESS);
}

/* The descriptor stays the caller's. */
API cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *ret_handle, void *shareable,
                                   CUmemAllocationHandleType type)
{
    CUresult r;
    int fd = (int)(intptr_t)shareable, device;
    struct segment_tail tail;
    struct vmm_handle *vmm;

    ENTER(enter_unbroken("cuMemImportFromShareableHandle"));
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !segment_read_tail(fd, &tail) || !tail.vmm)
        return leave(CUDA_ERROR_INVALID_VALUE);
    device = device_by_uuid(&tail.device);
    if (device < 0)
        return leave(CUDA_ERROR_INVALID_DEVICE);
    vmm = calloc(1, sizeof(*vmm));
    if (!vmm)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    *vmm = (struct vmm_handle){.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0),
                               .device = device,
                               .size = tail.size,
                               .handle_types = tail.handle_types,
                               .imported = true};
    r = vmm->fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : publish(vmm, ret_handle);
    if (r != CUDA_SUCCESS) {
        if (vmm->fd >= 0)
            close(vmm->fd);
        free(vmm);
    }
    return leave(r);
}

/* ---- addresses ---- */

API cuMemAddressReserve(CUdeviceptr *ret_address, size_t size, size_t alignment, CUdeviceptr wish,
                        unsigned long long flags)
{
    CUresult r = enter_unbroken("cuMemAddressReserve");
    struct reservation *reservation;

    (void)wish; /* a hint */
    if (r != CUDA_SUCCESS)
        return r;
    if (!size || size % GRANULARITY || alignment > GRANULARITY || (alignment & (alignment - 1)) || flags)
        return leave(CUDA_ERROR_INVALID_VALUE);
    reservation = calloc(1, sizeof(*reservation));
    if (!reservation)
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    reservation->size = size;
    reservation->address = address_reserve(size);
    if (!reservation->address) {
        free(reservation);
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    reservation->next = reservations;
    reservations = reservation;
    count(STANDIN_COUNTER_live_vmm_reservations, 1);
    *ret_address = reservation->address;
    return leave(CUDA_SUCCESS);
}

/* A map that has a byte in the range, or NULL. */
static struct region *map_within(uint64_t address, uint64_t size)
{
    for (struct region *r = standin_regions; r; r = r->next)
        if (r->kind == REGION_VMM && r->address < address + size && address < r->address + r->size)
            return r;
    return NULL;
}

API cuMemAddressFree(CUdeviceptr address, size_t size)
{
    struct reservation **link = &reservations, *gone;

    ENTER(enter_unbroken("cuMemAddressFree"));
    while (*link && ((*link)->address != address || (*link)->size != size))
        link = &(*link)->next;
    if (!*link)
        return leave(misuse(CUDA_ERROR_INVALID_VALUE, "%#llx + %zu is not reserved", address, size));
    if (map_within(address, size))
        return leave(misuse(CUDA_ERROR_INVALID_VALUE, "%#llx is still mapped", address));
    gone = *link;
    *link = gone->next;
    address_free(gone->address, gone->size);
    free(gone);
    count(STANDIN_COUNTER_live_vmm_reservations, -1);
    return leave(CUDA_SUCCESS);
}

/* ---- maps ---- */

static bool is_reserved(uint64_t address, uint64_t size)
{
    for (const struct reservation *r = reservations; r; r = r->next)
        if (address >= r->address && address - r->address < r->size && size <= r->size - (address - r->address))
            return true;
    return false;
}

API cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags)
{
    struct vmm_handle *vmm;
    struct region *region;

    ENTER(enter_unbroken("cuMemMap"));
    gate_pass_call(STANDIN_GATE_vmm_map);
    vmm = vmm_get(handle);
    if (!vmm || offset || flags || !size || size % GRANULARITY || address % GRANULARITY)
        return leave(CUDA_ERROR_INVALID_VALUE);
    if (size > vmm->size)
        return leave(CUDA_ERROR_NOT_SUPPORTED); /* what a real driver answered */
    if (!is_reserved(address, size) || map_within(address, size))
        return leave(CUDA_ERROR_INVALID_VALUE);
    region = calloc(1, sizeof(*region));
    if (!region || !segment_map(address, vmm->fd, size, PROT_NONE)) {
        free(region);
        return leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *region = (struct region){.kind = REGION_VMM,
                              .address = address,
                              .size = size,
                              .device = vmm->device,
                              .buffer_id = buffer_id_next(),
                              .vmm = vmm};
    region_add(region);
    vmm->maps++;
    count(STANDIN_COUNTER_live_vmm_maps, 1);
    return leave(CUDA_SUCCESS);
}

static void set_access(struct region *region, const CUmemAccessDesc *access)
{
    uint32_t bit = 1U << access->location.id;

    region->readers &= ~bit;
    region->writers &= ~bit;
    if (access->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE)
        region->readers |= bit;
    if (access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        region->writers |= bit;
}

static CUresult access_check(const CUmemAccessDesc *access, int owner)
{
    if (access->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        (access->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && access->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
         access->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_is_valid(access->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    if (access->location.id != owner && !devices_are_peers(access->location.id, owner))
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

API cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t n)
{
    CUresult r = CUDA_SUCCESS;

    ENTER(enter_unbroken("cuMemSetAccess"));
    if (!size || !access || !n)
        return leave(CUDA_ERROR_INVALID_VALUE);
    for (uint64_t at = address; at < address + size;) {
        struct region *region = region_find(at);

        if (!region || region->kind != REGION_VMM || region->address != at ||
            region->size > address + size - region->address)
            return leave(CUDA_ERROR_INVALID_VALUE);
        for (size_t i = 0; i < n; i++) {
            r = access_check(&access[i], region->device);
            if (r != CUDA_SUCCESS)
                return leave(r);
            set_access(region, &access[i]);
        }
        mprotect((void *)(uintptr_t)region->address, region->size,
                 region->writers   ? PROT_READ | PROT_WRITE
                 : region->readers ? PROT_READ
                                   : PROT_NONE);
        at += region->size;
    }
    return leave(CUDA_SUCCESS);
}

/* Whole maps only. A real driver does not wait here: work that still uses the range is the caller's bug. */
API cuMemUnmap(CUdeviceptr address, size_t size)
{
    struct region *region;

    ENTER(enter_unbroken("cuMemUnmap"));
    for (uint64_t at = address; at < address + size; at += region->size) {
        region = region_find(at);
        if (!region || region->kind != REGION_VMM || region->address != at ||
            region->size > address + size - region->address || region->freeing)
            return leave(misuse(CUDA_ERROR_INVALID_VALUE, "%#llx + %zu is not wholly mapped", address, size));
    }
    for (uint64_t at = address, next; at < address + size; at = next) {
        region = region_find(at);
        next = at + region->size;
        region->freeing = true;
        range_retire(NULL, region->address, region->size);
        region_remove(region);
        address_clear(region->address, region->size);
        region->vmm->maps--;
        vmm_free_if_unused(region->vmm);
        free(region);
        count(STANDIN_COUNTER_live_vmm_maps, -1);
    }
    return leave(CUDA_SUCCESS);
}
