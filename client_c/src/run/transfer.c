/* Reading and writing buffers. The processor copies shared memory. Device memory is copied by this process's CUDA
 * driver where the process uses it, otherwise by the daemon, through shared memory of this process.
 *
 * That shared memory is kept with the client for the next time. A thread takes it while it copies; another thread then
 * makes its own. */
#include <string.h>

#include "base/clock.h"
#include "base/fail.h"
#include "memory/buffer.h"
#include "run.h"

enum { STAGING_LEAST = 64 << 10, STAGING_MOST = 8 << 20 };

static enum kops_code take_staging(kops_client *c, size_t size, kops_buffer **ret, struct kops_error *e)
{
    size_t wanted = STAGING_LEAST;
    kops_buffer *kept;
    bool usable;

    while (wanted < size && wanted < STAGING_MOST)
        wanted *= 2;
    client_enter(c, e);
    kept = c->staging;
    usable = kept && c->staging_process == process_id(); /* a child would share it with its parent */
    c->staging = NULL;
    client_leave(c);
    if (usable && kops_buffer_size(kept) >= wanted) {
        *ret = kept;
        return KOPS_OK;
    }
    kops_buffer_release(kept);
    return kops_buffer_alloc_shared(c, wanted, ret, e);
}

static void give_staging(kops_client *c, kops_buffer *staging)
{
    client_enter(c, NULL);
    if (!c->staging) {
        c->staging = staging;
        c->staging_process = process_id();
        staging = NULL;
    }
    client_leave(c);
    kops_buffer_release(staging);
}

static enum kops_code copy_by_daemon(struct kops_buffer *b, uint64_t offset, void *to, const void *from, size_t size,
                                     struct kops_error *e)
{
    kops_buffer *staging = NULL;
    enum kops_code r = take_staging(b->client, size, &staging, e);

    if (r)
        return r;
    for (size_t at = 0, n; !r && at < size; at += n) {
        struct kops_tensor here, there;

        n = size - at < kops_buffer_size(staging) ? size - at : kops_buffer_size(staging);
        here = kops_vector(staging, KOPS_U8, (int64_t)n);
        there = kops_vector(b, KOPS_U8, (int64_t)n);
        there.offset = offset + at;
        if (from)
            memcpy(kops_buffer_data(staging), (const char *)from + at, n);
        r = kops_copy(b->client, from ? &here : &there, from ? &there : &here, NULL, NULL, e);
        if (!r && to)
            memcpy((char *)to + at, kops_buffer_data(staging), n);
    }
    if (r) /* a copy that timed out may be under way */
        kops_buffer_release(staging);
    else
        give_staging(b->client, staging);
    return r;
}

/* Tells whether the memory is the daemon's, and this process has no CUDA to reach it. */
static bool is_out_of_reach(struct kops_buffer *b)
{
    bool has_copy;

    if (b->kind != BUFFER_VMM || cuda_is_in_use(b->device))
        return false;
    client_enter(b->client, NULL);
    has_copy = client_op_name(b->client, "copy");
    client_leave(b->client);
    return has_copy;
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
    if (!size)
        return KOPS_OK;
    if (!b->data) {
        if (is_out_of_reach(b))
            return copy_by_daemon(b, offset, to, from, size, e);
        client_enter(b->client, e);
        r = cuda_map_copy(b, offset, to, from, size, e);
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
