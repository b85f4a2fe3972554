/* Every kind of buffer: making and freeing, and the descriptor's mapping. */
#include "buffer.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fail.h"
#include "cuda_map.h"

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

    cuda_map_drop(b);
    if (b->data)
        munmap(b->data, b->size);
    if (b->fd >= 0)
        close(b->fd);
    free(b->chunks);
    free(b);
    client_leave_unref(c);
}

enum kops_code buffer_map_shared(struct kops_buffer *b, struct kops_error *e)
{
    int protection = b->access == KOPS_ACCESS_R ? PROT_READ : PROT_READ | PROT_WRITE;
    void *data = mmap(NULL, b->size, protection, MAP_SHARED, b->fd, 0);

    if (data == MAP_FAILED)
        return fail_os(e, errno, "mapping shared memory");
    b->data = data;
    return KOPS_OK;
}

kops_buffer *kops_buffer_release(kops_buffer *buffer)
{
    struct kops_client *c;

    if (!buffer)
        return NULL;
    c = buffer->client;
    client_enter(c, NULL);
    remote_release(c, &buffer->remote, "buffer");
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
