#include "export.h"

#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "base/process.h"

static enum kops_code check_exportable(const struct cuda_driver *d, cuda_pointer pointer, struct kops_error *e)
{
    unsigned type = 0, managed = 0;

    if (d->pointer_attribute(&type, CUDA_ATTRIBUTE_MEMORY_TYPE, pointer) || type != CUDA_MEMORY_TYPE_DEVICE)
        return fail(e, KOPS_ERR_NOT_EXPORTABLE,
                    "the pointer is not CUDA device memory: use kops_buffer_alloc_shared() for host memory");
    if (!d->pointer_attribute(&managed, CUDA_ATTRIBUTE_IS_MANAGED, pointer) && managed)
        return fail(e, KOPS_ERR_NOT_EXPORTABLE,
                    "managed memory (cudaMallocManaged) has no IPC handle: allocate it with cudaMalloc or cuMemAlloc");
    return KOPS_OK;
}

/* Where an allocation is, and on which device. */
struct place {
    cuda_pointer base;
    size_t size;
    uint64_t alloc_id;
    int ordinal;
    char device[CUDA_UUID_TEXT];
};

static enum kops_code find_place(const struct cuda_driver *d, cuda_pointer pointer, struct place *ret,
                                 struct kops_error *e)
{
    unsigned long long id = 0;
    cuda_status status = d->address_range(&ret->base, &ret->size, pointer);

    if (!status)
        status = d->pointer_attribute(&id, CUDA_ATTRIBUTE_BUFFER_ID, pointer);
    if (!status)
        status = d->pointer_attribute(&ret->ordinal, CUDA_ATTRIBUTE_DEVICE_ORDINAL, pointer);
    if (status)
        return cuda_fail(d, e, KOPS_ERR_NOT_EXPORTABLE, status, "looking up the allocation of the pointer");
    ret->alloc_id = id;
    return cuda_device_uuid(d, ret->ordinal, ret->device, e);
}

/* ---- virtual memory ---- */

enum kops_code export_chunk(cuda_pointer address, int *ret_fd, struct kops_error *e)
{
    const struct cuda_driver *d = cuda_load(e);
    cuda_allocation allocation;
    cuda_status status;

    if (!d)
        return KOPS_ERR_NO_CUDA;
    status = d->vmm_retain(&allocation, (void *)(uintptr_t)address);
    if (status)
        return cuda_fail(d, e, KOPS_ERR_NOT_EXPORTABLE, status, "cuMemRetainAllocationHandle");
    status = d->vmm_export(ret_fd, allocation, CUDA_HANDLE_TYPE_FD, 0);
    d->vmm_release(allocation);
    return status ? cuda_fail(d, e, KOPS_ERR_NOT_EXPORTABLE, status,
                              "cuMemExportToShareableHandle: the memory must be made with "
                              "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR")
                  : KOPS_OK;
}

/* All chunks that are mapped without a gap from the pointer's on: a buffer reaches to the end of its memory. */
static enum kops_code find_chunks(const struct cuda_driver *d, struct kops_buffer *b, const struct place *first,
                                  struct kops_error *e)
{
    cuda_pointer base = first->base;
    size_t size = first->size;
    unsigned room = 0;

    b->size = 0;
    do {
        if (b->n_chunks == room) {
            uint64_t *more = realloc(b->chunks, (room += 64) * sizeof(*more));

            if (!more)
                return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a buffer");
            b->chunks = more;
        }
        b->chunks[b->n_chunks++] = size;
        b->size += size;
    } while (!d->address_range(&base, &size, first->base + b->size) && base == first->base + b->size);
    b->size -= b->base_offset;
    return KOPS_OK;
}

/* ---- pools ---- */

static enum kops_code export_pooled(const struct cuda_driver *d, struct kops_buffer *b, const struct place *at,
                                    void *pool, struct kops_error *e)
{
    cuda_status status = d->pool_export && d->pool_export_pointer ? d->pool_export(&b->fd, pool, CUDA_HANDLE_TYPE_FD, 0)
                                                                  : CUDA_ERROR_NOT_SUPPORTED;

    if (!status)
        status = d->pool_export_pointer(&b->handle, at->base);
    if (!status)
        return KOPS_OK;
    return cuda_fail(
        d, e, KOPS_ERR_NOT_EXPORTABLE, status,
        "the memory comes from cudaMallocAsync, whose pool is shared only if it was made with "
        "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: allocate it with cudaMalloc or cuMemAlloc; in PyTorch, do "
        "not set PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync");
}

/* ---- the way that fits ---- */

static enum kops_code export_in_context(const struct cuda_driver *d, struct kops_buffer *b, struct kops_error *e)
{
    struct place at;
    cuda_status status;
    int capable = 1;
    void *pool = NULL;
    enum kops_code r = find_place(d, b->pointer, &at, e);

    if (r)
        return r;
    b->base_offset = b->pointer - at.base;
    b->size = at.size - b->base_offset;
    b->alloc_id = at.alloc_id;
    b->ordinal = at.ordinal;
    memcpy(b->device, at.device, sizeof(b->device));
    /* Drivers before 11.7 do not know the attribute; there the call for the handle says so. */
    if (d->pointer_attribute(&capable, CUDA_ATTRIBUTE_LEGACY_IPC, b->pointer))
        capable = 1;
    if (capable) {
        status = d->ipc_handle(&b->handle, at.base);
        return status ? cuda_fail(d, e, KOPS_ERR_NOT_EXPORTABLE, status,
                                  "cuIpcGetMemHandle: only memory of cudaMalloc or cuMemAlloc has a handle")
                      : KOPS_OK;
    }
    if (!d->pointer_attribute(&pool, CUDA_ATTRIBUTE_MEMPOOL, b->pointer) && pool) {
        b->kind = BUFFER_POOL;
        return export_pooled(d, b, &at, pool, e);
    }
    if (!d->vmm_retain || !d->vmm_export)
        return fail(e, KOPS_ERR_NOT_EXPORTABLE,
                    "the memory was mapped by virtual memory management, which this driver does not share: allocate it "
                    "with cudaMalloc or cuMemAlloc; in PyTorch, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False");
    b->kind = BUFFER_CHUNKS;
    return find_chunks(d, b, &at, e);
}

enum kops_code export_memory(const struct cuda_driver *d, cuda_pointer pointer, struct kops_buffer *ret,
                             struct kops_error *e)
{
    enum kops_code r = check_exportable(d, pointer, e);
    cuda_context context = NULL;
    cuda_status status = 0;

    if (r)
        return r;
    ret->kind = BUFFER_CUDA;
    ret->pointer = pointer;
    /* The calling thread need not have a context: the memory's own will do. */
    d->pointer_attribute(&context, CUDA_ATTRIBUTE_CONTEXT, pointer);
    if (context)
        status = d->context_push(context);
    if (status)
        return cuda_fail(d, e, KOPS_ERR_NO_CUDA, status, "cuCtxPushCurrent");
    r = export_in_context(d, ret, e);
    if (!r)
        ret->cuda_process = process_id();
    if (context)
        cuda_pop(d);
    return r;
}
