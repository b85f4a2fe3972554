#include "cuda_map.h"

#include "base/fail.h"

/* Unmaps memory. Addresses that the driver does not unmap stay reserved, so that nothing else comes to lie there. */
static void unmap(const struct cuda_driver *d, cuda_pointer pointer, size_t size)
{
    if (d->vmm_unmap(pointer, size) == 0)
        d->vmm_unreserve(pointer, size);
}

static enum kops_code map_allocation(const struct cuda_driver *d, struct kops_buffer *b, int ordinal,
                                     struct kops_error *e)
{
    const struct cuda_access access = {CUDA_LOCATION_DEVICE, ordinal, CUDA_ACCESS_RW};
    const char *what = "cuMemImportFromShareableHandle";
    cuda_allocation allocation;
    cuda_pointer pointer;
    cuda_status status = d->vmm_import(&allocation, (void *)(intptr_t)b->fd, CUDA_HANDLE_TYPE_FD);

    if (status)
        return cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, what);
    what = "cuMemAddressReserve";
    status = d->vmm_reserve(&pointer, b->size, 0, 0, 0);
    if (status)
        goto release_allocation;
    what = "cuMemMap";
    status = d->vmm_map(pointer, b->size, 0, allocation, 0);
    if (status)
        goto free_reservation;
    what = "cuMemSetAccess";
    status = d->vmm_set_access(pointer, b->size, &access, 1);
    if (status)
        goto unmap;
    d->vmm_release(allocation); /* the mapping keeps it */
    b->pointer = pointer;
    b->ordinal = ordinal;
    atomic_store_explicit(&b->cuda_process, process_id(), memory_order_release);
    return KOPS_OK;

unmap:
    unmap(d, pointer, b->size);
    goto release_allocation;
free_reservation:
    d->vmm_unreserve(pointer, b->size);
release_allocation:
    d->vmm_release(allocation);
    return cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, what);
}

enum kops_code cuda_map_pointer(const struct cuda_driver *d, struct kops_buffer *b, struct kops_error *e)
{
    cuda_context current = NULL;
    enum kops_code r;
    int ordinal;

    if (cuda_map_is_here(b, process_id()))
        return KOPS_OK;
    if (b->kind != BUFFER_VMM)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "the buffer is %s",
                    b->kind == BUFFER_SHARED ? "shared memory, not device memory"
                                             : "device memory of the parent process");
    r = cuda_find_device(d, b->device, &ordinal, e);
    if (r)
        return r;
    d->context_get(&current);
    if (!current) {
        r = cuda_push_primary(d, ordinal, e);
        if (r)
            return r;
    }
    r = map_allocation(d, b, ordinal, e);
    if (!current)
        cuda_pop(d);
    return r;
}

void cuda_map_drop(struct kops_buffer *b)
{
    struct kops_error unwanted;
    const struct cuda_driver *d;

    if (b->kind != BUFFER_VMM || !cuda_map_is_here(b, process_id()))
        return;
    d = cuda_load(&unwanted);
    if (!d)
        return;
    unmap(d, b->pointer, b->size);
    b->cuda_process = 0;
}

enum kops_code kops_buffer_map_cuda(kops_buffer *buffer, uint64_t *ret_pointer, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    const struct cuda_driver *d;
    enum kops_code r;

    fail_clear(e);
    if (buffer->kind == BUFFER_SHARED)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "the buffer is shared memory, not device memory: use kops_buffer_data()");
    d = cuda_load(e);
    if (!d)
        return KOPS_ERR_NO_CUDA;
    client_enter(buffer->client, e);
    r = cuda_map_pointer(d, buffer, e);
    if (!r)
        *ret_pointer = buffer->pointer;
    client_leave(buffer->client);
    return r;
}

enum kops_code cuda_map_copy(struct kops_buffer *b, uint64_t offset, void *to, const void *from, size_t size,
                             struct kops_error *e)
{
    const struct cuda_driver *d = cuda_load(e);
    cuda_status status = 0;
    enum kops_code r;
    int ordinal;

    if (!d)
        return KOPS_ERR_NO_CUDA;
    r = cuda_find_device(d, b->device, &ordinal, e);
    if (!r)
        r = cuda_push_primary(d, ordinal, e);
    if (r)
        return r;
    r = cuda_map_pointer(d, b, e);
    if (!r && size) {
        status =
            to ? d->copy_to_host(to, b->pointer + offset, size) : d->copy_to_device(b->pointer + offset, from, size);
        /* A copy from pageable memory returns once the source was read; the daemon must see the data in place. */
        if (!status)
            status = d->context_synchronize();
    }
    cuda_pop(d);
    if (r)
        return r;
    return status ? cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, "copying to or from the device") : KOPS_OK;
}
