#include "register.h"

#include <unistd.h>

#include "base/fail.h"
#include "cuda_map.h"
#include "export.h"
#include "session/call.h"
#include "session/recover.h"
#include "session/send.h"

_Static_assert((int)WIRE_HANDLE_SIZE == (int)CUDA_HANDLE_SIZE, "a handle travels whole");

/* One message a chunk: a chunk's mapping costs the daemon many times its round trip. */
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

/* The same, begun anew where the daemon ends meanwhile. */
static enum kops_code register_all_chunks(struct kops_buffer *b, const struct wire_register *request,
                                          struct wire_buffer *made, uint64_t deadline, struct kops_error *e)
{
    struct recovery recovery = {0};
    enum kops_code r;

    do {
        struct wire_register copy = *request;

        r = register_chunks(b, &copy, made, deadline, e);
        recovery.sent = true; /* and answered, where one of them was refused */
    } while (r && recovery_again(b->client, &recovery, recovery_always, NULL, deadline, e));
    return r;
}

/* Errors of memory that the daemon will refuse the next time, too. */
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

/* An earlier connection knew the buffer, and this one cannot be told. */
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
        return KOPS_OK; /* the caller tries again, with all of them */
    }
    if (r)
        return b->remote.generation && is_final(r) ? lose(b, e) : r;
    /* Where the connection changed meanwhile the id may be of either: the caller tries again. */
    remote_defined(c, &b->remote, made.id, generation);
    return KOPS_OK;
}

enum kops_code buffer_ensure(struct kops_buffer *b, uint64_t deadline, struct kops_error *e)
{
    return remote_ensure(b->client, &b->remote, register_now, b, "buffer", deadline, e);
}
