/* Shared memory, registration, and what all buffers have in common. */
#include "buffer.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "available.h"
#include "base/fail.h"
#include "base/process.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static const size_t touched_at_once = (size_t)64 << 20;

struct kops_buffer *buffer_new(struct kops_client *c, enum buffer_kind kind, uint64_t size, enum kops_access access)
{
    struct kops_buffer *b = calloc(1, sizeof(*b));

    if (!b)
        return NULL;
    b->client = c;
    b->kind = kind;
    b->size = size;
    b->access = access;
    b->fd = -1;
    c->references++;
    return b;
}

void buffer_free_leave(struct kops_buffer *b)
{
    struct kops_client *c = b->client;

    buffer_unmap_cuda(b);
    if (b->data)
        munmap(b->data, b->size);
    if (b->fd >= 0)
        close(b->fd);
    free(b->chunks);
    free(b);
    client_leave_unref(c);
}

/* ---- registration ---- */

/* One message a chunk: each costs the daemon many times what its round trip does. */
static enum kops_code register_chunks(struct kops_buffer *b, struct wire_register *request, struct wire_buffer *made,
                                      uint64_t deadline, struct kops_error *e)
{
    cuda_pointer address = b->pointer - b->base_offset;
    struct kops_client *c = b->client;
    const uint32_t generation = c->generation;

    request->fd = true;
    for (unsigned i = 0; i < b->n_chunks; address += b->chunks[i++]) {
        int fd = -1;
        enum kops_code r = buffer_export_chunk(address, &fd, e);

        if (!r) {
            request->chunk_bytes = b->chunks[i];
            r = session_call(c, wire_pack_register, request, fd, wire_decode_register, made, deadline, SESSION_HERE, e);
            close(fd);
        }
        if (r || c->generation != generation) {
            if (request->extend && c->generation == generation)
                session_release(c, wire_pack_release, request->extend);
            return r ? r : fail(e, KOPS_ERR_CONNECTION_LOST, "the connection was lost");
        }
        request->extend = made->id;
        if (i + 1 < b->n_chunks)
            request->size = b->chunks[i + 1];
    }
    return KOPS_OK;
}

/* The same for a daemon that ends meanwhile. */
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

/* What a daemon says of memory that it will not take the next time either. */
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

/* It was known to an earlier connection and cannot be made known to this one. */
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

static enum kops_code register_now(struct kops_buffer *b, uint64_t deadline, struct kops_error *e)
{
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
    if (buffer_is_foreign(b) && b->cuda_process != process_id())
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
        return b->generation && is_final(r) ? lose(b, e) : r;
    /* Where the connection changed meanwhile the id may be of either: the caller tries again. */
    if (c->generation == generation) {
        b->id = made.id;
        b->generation = generation;
    }
    return KOPS_OK;
}

enum kops_code buffer_ensure(struct kops_buffer *b, uint64_t deadline, struct kops_error *e)
{
    struct kops_client *c = b->client;

    for (;;) {
        enum kops_code r = session_connect(c, deadline, e);

        if (r || b->generation == c->generation)
            return r;
        if (b->registering == c->generation) {
            session_sleep(c, deadline);
        } else {
            b->registering = c->generation;
            r = register_now(b, deadline, e);
            b->registering = 0;
            if (c->waiters)
                pthread_cond_broadcast(&c->changed);
            if (r)
                return r;
        }
        if (b->generation != c->generation && deadline != DEADLINE_NEVER && clock_ns() >= deadline)
            return fail(e, KOPS_ERR_TIMEOUT, "the buffer could not be registered in time");
    }
}

/* ---- shared memory ---- */

static enum kops_code make_memfd(size_t size, int *ret_fd, struct kops_error *e)
{
    int fd = memfd_create("kops", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL), r;

    if (fd < 0 && errno == EINVAL) /* Linux before 6.3 */
        fd = memfd_create("kops", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return fail_os(e, errno, "memfd_create");
    if (ftruncate(fd, (off_t)size) < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        r = errno;
        close(fd);
        return fail_os(e, r, "sizing shared memory");
    }
    *ret_fd = fd;
    return KOPS_OK;
}

static enum kops_code map_shared(struct kops_buffer *b, struct kops_error *e)
{
    int protection = b->access == KOPS_ACCESS_R ? PROT_READ : PROT_READ | PROT_WRITE;
    void *data = mmap(NULL, b->size, protection, MAP_SHARED, b->fd, 0);

    if (data == MAP_FAILED)
        return fail_os(e, errno, "mapping shared memory");
    b->data = data;
    return KOPS_OK;
}

/* Takes every page now. The kernel charges a shared page to the process that first touches it: that is to be this one,
 * and not the daemon that writes an output there. Before Linux 5.14 without mapping the pages. */
static enum kops_code touch_all(const struct kops_buffer *b, struct kops_error *e)
{
    bool populates = true;
    size_t length;

    for (size_t at = 0; at < b->size; at += length) {
        int r;

        length = b->size - at < touched_at_once ? b->size - at : touched_at_once;
        do {
            r = populates ? madvise((char *)b->data + at, length, MADV_POPULATE_WRITE)
                          : fallocate(b->fd, 0, (off_t)at, (off_t)length);
            if (r && populates && errno == EINVAL) {
                populates = false;
                errno = EINTR;
            }
        } while (r && errno == EINTR);
        if (r && !populates && errno == EOPNOTSUPP)
            return KOPS_OK;
        if (r)
            return fail(e, KOPS_ERR_OUT_OF_MEMORY, "the system has no memory for the pages of %llu bytes: %s",
                        (unsigned long long)b->size, strerror(errno));
    }
    return KOPS_OK;
}

/* Registers first: the daemon's check of the descriptor has the better message, its quota is asked before there are
 * pages, and touching a mapping longer than its file kills the process. */
static enum kops_code give_out_shared(struct kops_buffer *b, bool touch, kops_buffer **ret_buffer, struct kops_error *e)
{
    struct kops_client *c = b->client;
    enum kops_code r = buffer_ensure(b, client_deadline(c, 0), e);

    if (!r)
        r = map_shared(b, e);
    client_leave(c);
    if (!r && touch)
        r = touch_all(b, e);
    if (r) {
        kops_buffer_release(b);
        return r;
    }
    *ret_buffer = b;
    return KOPS_OK;
}

enum kops_code kops_buffer_alloc_shared(kops_client *client, size_t size, kops_buffer **ret_buffer,
                                        struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct kops_buffer *b;
    enum kops_code r;
    int fd = -1;

    fail_clear(e);
    if (!size)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "a buffer has at least one byte");
    r = memory_check(size, e);
    if (!r)
        r = make_memfd(size, &fd, e);
    if (r)
        return r;
    client_enter(client, e);
    b = buffer_new(client, BUFFER_SHARED, size, KOPS_ACCESS_RW);
    if (!b) {
        client_leave(client);
        close(fd);
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a buffer");
    }
    b->fd = fd;
    return give_out_shared(b, true, ret_buffer, e);
}

enum kops_code kops_buffer_register_memfd(kops_client *client, int fd, size_t size, enum kops_access access,
                                          kops_buffer **ret_buffer, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct kops_buffer *b;
    int own;

    fail_clear(e);
    if (!size || size > INT64_MAX || (access != KOPS_ACCESS_RW && access != KOPS_ACCESS_R))
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "a buffer has at least one byte, and access is KOPS_ACCESS_RW or _R");
    own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return fail_os(e, errno, "duplicating the descriptor");
    client_enter(client, e);
    b = buffer_new(client, BUFFER_SHARED, size, access);
    if (!b) {
        client_leave(client);
        close(own);
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a buffer");
    }
    b->fd = own;
    return give_out_shared(b, false, ret_buffer, e);
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
        wire_pack_release(session_notifications(client), made.id);
        session_push(client);
        client_leave(client);
        close(made.fd);
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a buffer");
    }
    b->fd = made.fd;
    b->id = made.id;
    /* Where the connection changed meanwhile the id may be of either: the next use registers what the fd holds. */
    b->generation = client->generation == generation ? generation : 0;
    if (made.vmm && where)
        snprintf(b->device, sizeof(b->device), "%s", where->uuid);
    r = made.vmm ? KOPS_OK : map_shared(b, e);
    client_leave(client);
    if (r) {
        kops_buffer_release(b);
        return r;
    }
    *ret_buffer = b;
    return KOPS_OK;
}

kops_buffer *kops_buffer_release(kops_buffer *buffer)
{
    struct kops_client *c;

    if (!buffer)
        return NULL;
    c = buffer->client;
    client_enter(c, NULL);
    if (buffer->generation == c->generation && c->t.fd >= 0 && !c->lost) {
        session_release(c, wire_pack_release, buffer->id);
    }
    buffer_free_leave(buffer);
    return NULL;
}

/* ---- accessors ---- */

void *kops_buffer_data(const kops_buffer *buffer)
{
    return buffer->data;
}

size_t kops_buffer_size(const kops_buffer *buffer)
{
    return buffer->size;
}

uint64_t kops_buffer_base_offset(const kops_buffer *buffer)
{
    return buffer->base_offset;
}

const char *kops_buffer_device(const kops_buffer *buffer)
{
    return buffer->kind == BUFFER_SHARED ? NULL : buffer->device;
}

static enum kops_code copy(struct kops_buffer *b, uint64_t offset, void *to, const void *from, size_t size,
                           struct kops_error *e)
{
    enum kops_code r;

    fail_clear(e);
    if (offset > b->size || size > b->size - offset)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "bytes %llu to %llu lie outside a buffer of %llu",
                    (unsigned long long)offset, (unsigned long long)(offset + size), (unsigned long long)b->size);
    if (from && b->access == KOPS_ACCESS_R)
        return fail(e, KOPS_ERR_READ_ONLY, "the buffer was registered with KOPS_ACCESS_R");
    if (!b->data) {
        client_enter(b->client, e);
        r = buffer_copy_cuda(b, offset, to, from, size, e);
        client_leave(b->client);
        return r;
    }
    if (to)
        memcpy(to, (char *)b->data + offset, size);
    else if (from)
        memcpy((char *)b->data + offset, from, size);
    return KOPS_OK;
}

enum kops_code kops_buffer_read(kops_buffer *buffer, uint64_t offset, void *into, size_t size,
                                struct kops_error *ret_error)
{
    struct kops_error unwanted;

    return copy(buffer, offset, into, NULL, size, ret_error ? ret_error : &unwanted);
}

enum kops_code kops_buffer_write(kops_buffer *buffer, uint64_t offset, const void *from, size_t size,
                                 struct kops_error *ret_error)
{
    struct kops_error unwanted;

    return copy(buffer, offset, NULL, from, size, ret_error ? ret_error : &unwanted);
}
