#include "buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fail.h"
#include "session/connect.h"
#include "session/session.h"

/* ---- this process's device memory as the daemon can open it: IPC handles where the driver gives any, else descriptors
 * of virtual memory's allocations (PyTorch's expandable segments), else those of an exportable pool (cudaMallocAsync)
 * ---- */

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

/* Place and device of an allocation. */
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

/* Exports the allocation mapped at an address as a descriptor, which is the caller's. */
static enum kops_code export_chunk(cuda_pointer address, int *ret_fd, struct kops_error *e)
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

/* Finds all chunks mapped without a gap from the pointer's on: a buffer reaches to the end of its memory. */
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
    /* Drivers before 11.7 do not know the attribute; with them the call for the handle fails. */
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

/* Describes the memory that holds the pointer, in a buffer that is not registered yet. */
static enum kops_code export_memory(const struct cuda_driver *d, cuda_pointer pointer, struct kops_buffer *ret,
                                    struct kops_error *e)
{
    enum kops_code r = check_exportable(d, pointer, e);
    cuda_context context = NULL;
    cuda_status status = 0;

    if (r)
        return r;
    ret->kind = BUFFER_CUDA;
    ret->pointer = pointer;
    /* The calling thread need not have a context: the memory's own context is used. */
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

/* ---- making buffers known ---- */

_Static_assert((int)WIRE_HANDLE_SIZE == (int)CUDA_HANDLE_SIZE, "a handle travels whole");

/* Registers one chunk a message, since a chunk's mapping costs the daemon far more than a round trip. */
static enum kops_code register_chunks(struct kops_buffer *b, struct wire_register *request, struct wire_buffer *made,
                                      uint64_t deadline, struct kops_error *e)
{
    cuda_pointer address = b->pointer - b->base_offset;
    struct kops_client *c = b->client;
    const uint32_t generation = c->generation;

    request->fd = true;
    for (unsigned i = 0; i < b->n_chunks; address += b->chunks[i++]) {
        int fd = -1;
        enum kops_code r = export_chunk(address, &fd, e);

        if (!r) {
            request->chunk_bytes = b->chunks[i];
            r = session_call(c, wire_pack_register, request, fd, wire_decode_register, made, deadline, SESSION_HERE, e);
            close(fd);
        }
        if (r || c->generation != generation) {
            if (request->extend && c->generation == generation)
                session_release(c, "buffer", request->extend);
            return r ? r : fail(e, KOPS_ERR_CONNECTION_LOST, "the connection was lost");
        }
        request->extend = made->id;
        if (i + 1 < b->n_chunks)
            request->size = b->chunks[i + 1];
    }
    return KOPS_OK;
}

/* Registers all chunks, and begins anew where the daemon ends meanwhile. */
static enum kops_code register_all_chunks(struct kops_buffer *b, const struct wire_register *request,
                                          struct wire_buffer *made, uint64_t deadline, struct kops_error *e)
{
    struct recovery recovery = {0};
    enum kops_code r;

    do {
        struct wire_register copy = *request;

        r = register_chunks(b, &copy, made, deadline, e);
        recovery.sent = true; /* and answered, where the daemon refused a chunk */
    } while (r && recovery_again(b->client, &recovery, recovery_always, NULL, deadline, e));
    return r;
}

/* Tells whether the daemon will refuse the memory the next time, too. */
static bool is_final(enum kops_code code)
{
    switch (code) {
    case KOPS_ERR_STALE_BUFFER:
    case KOPS_ERR_INVALID_HANDLE:
    case KOPS_ERR_INVALID_FD:
    case KOPS_ERR_UNKNOWN_DEVICE:
    case KOPS_ERR_UNSUPPORTED:
    case KOPS_ERR_DEVICE_MISMATCH:
    case KOPS_ERR_PERMISSION_DENIED:
    case KOPS_ERR_NOT_EXPORTABLE:
        return true;
    default:
        return false;
    }
}

/* Marks a buffer that an earlier connection knew, and this one cannot register, as lost. */
static enum kops_code lose(struct kops_buffer *b, struct kops_error *e)
{
    const struct kops_error why = *e;

    b->lost = true;
    return fail(e, KOPS_ERR_BUFFER_LOST,
                "the buffer was lost when the daemon ended, since the one that runs now does not take its memory "
                "(%s: %.300s): release it and make it anew",
                kops_code_name(why.code), why.message);
}

static bool buffer_is_foreign(const struct kops_buffer *b)
{
    return b->kind == BUFFER_CUDA || b->kind == BUFFER_CHUNKS || b->kind == BUFFER_POOL;
}

static enum kops_code register_now(void *thing, uint64_t deadline, struct kops_error *e)
{
    struct kops_buffer *b = thing;
    static const char *const kinds[] = {[BUFFER_SHARED] = "memfd",
                                        [BUFFER_CUDA] = "cuda_ipc",
                                        [BUFFER_VMM] = "cuda_vmm",
                                        [BUFFER_CHUNKS] = "cuda_vmm",
                                        [BUFFER_POOL] = "cuda_pool"};
    struct kops_client *c = b->client;
    struct wire_register request = {.kind = kinds[b->kind],
                                    .size = b->size + b->base_offset,
                                    .handle = b->kind == BUFFER_CUDA || b->kind == BUFFER_POOL ? b->handle.bytes : NULL,
                                    .alloc_id = b->alloc_id,
                                    .fd = b->fd >= 0,
                                    .device = b->kind == BUFFER_SHARED ? NULL : b->device,
                                    .access = b->access};
    const uint32_t generation = c->generation;
    struct wire_buffer made;
    enum kops_code r;

    if (b->lost)
        return fail(e, KOPS_ERR_BUFFER_LOST, "the buffer was lost when the daemon ended: release it and make it anew");
    if (buffer_is_foreign(b) && !cuda_map_is_here(b, process_id()))
        return fail(e, KOPS_ERR_NOT_EXPORTABLE,
                    "the buffer is CUDA memory of the parent process: register the child's own memory instead");
    r = b->kind == BUFFER_CHUNKS ? register_all_chunks(b, &request, &made, deadline, e)
                                 : session_call(c, wire_pack_register, &request, b->fd, wire_decode_register, &made,
                                                deadline, SESSION_ATTEMPTS, e);
    if (r && b->kind == BUFFER_CHUNKS && c->generation != generation) {
        fail_clear(e);
        return KOPS_OK; /* the caller tries again, with all chunks */
    }
    if (r)
        return b->remote.generation && is_final(r) ? lose(b, e) : r;
    /* Where the connection changed meanwhile, the id may belong to either connection: the caller tries again. */
    remote_defined(c, &b->remote, made.id, generation);
    return KOPS_OK;
}

enum kops_code buffer_ensure(struct kops_buffer *b, uint64_t deadline, struct kops_error *e)
{
    return remote_ensure(b->client, &b->remote, register_now, b, "buffer", deadline, e);
}

/* ---- buffers of device memory ---- */

enum kops_code kops_buffer_register_cuda(kops_client *client, uint64_t pointer, enum kops_access access,
                                         kops_buffer **ret_buffer, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    const struct cuda_driver *d;
    struct kops_buffer *b;
    enum kops_code r;

    fail_clear(e);
    if (access != KOPS_ACCESS_RW && access != KOPS_ACCESS_R)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "access is KOPS_ACCESS_RW or KOPS_ACCESS_R");
    d = cuda_load(e);
    if (!d)
        return KOPS_ERR_NO_CUDA;
    client_enter(client, e);
    b = buffer_new(client, BUFFER_CUDA, 0, access);
    if (!b) {
        client_leave(client);
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a buffer");
    }
    r = export_memory(d, pointer, b, e);
    if (!r)
        r = buffer_ensure(b, client_deadline(client, 0), e);
    if (r) {
        buffer_free_leave(b);
        return r;
    }
    client_leave(client);
    *ret_buffer = b;
    return KOPS_OK;
}

enum kops_code kops_buffer_alloc(kops_client *client, size_t size, const char *device, kops_buffer **ret_buffer,
                                 struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    const struct kops_device *where = kops_info_device(client, device);
    struct wire_alloc request = {.size = size, .device = device};
    struct wire_buffer made = {.fd = -1};
    struct kops_buffer *b;
    uint32_t generation;
    enum kops_code r;

    if (where && !strcmp(where->backend, "host"))
        return kops_buffer_alloc_shared(client, size, ret_buffer, ret_error);
    client_enter(client, e);
    r = session_connect(client, client_deadline(client, 0), e);
    if (r) {
        client_leave(client);
        return r;
    }
    generation = client->generation;
    r = session_call(client, wire_pack_alloc, &request, -1, wire_decode_alloc, &made, client_deadline(client, 0),
                     SESSION_ATTEMPTS, e);
    if (r) {
        client_leave(client);
        return r;
    }
    b = buffer_new(client, made.vmm ? BUFFER_VMM : BUFFER_SHARED, made.size, KOPS_ACCESS_RW);
    if (!b) {
        session_release(client, "buffer", made.id);
        client_leave(client);
        close(made.fd);
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a buffer");
    }
    b->fd = made.fd;
    /* Where the connection changed meanwhile, the id may belong to either connection: the next use registers the
     * descriptor anew. */
    remote_defined(client, &b->remote, made.id, generation);
    if (made.vmm && where)
        snprintf(b->device, sizeof(b->device), "%s", where->uuid);
    r = made.vmm ? KOPS_OK : buffer_map_shared(b, e);
    client_leave(client);
    if (r) {
        kops_buffer_release(b);
        return r;
    }
    *ret_buffer = b;
    return KOPS_OK;
}
