/* Owns driver streams, kept for reuse because making one takes long, and their workspaces. */
#include "stream.h"

#include <stdlib.h>

#include "device.h"

enum {
    IDLE_STREAMS_MAX = 32,     /* of one priority; as many as run at once: CUDA_DEVICE_MAX_CONNECTIONS */
    RESTING_WORKSPACES_MAX = 8 /* streams that keep their workspace between jobs */
};

int cuda_stream_new(struct backend_device *base, enum backend_priority priority, struct backend_stream **ret_stream,
                    struct error *e)
{
    struct cuda_device *d = cuda_device(base);
    struct list *idle = list_first(&d->idle_streams[priority]);
    struct cuda_stream *s;

    if (idle) {
        list_remove(idle);
        d->idle_stream_count[priority]--;
        *ret_stream = (struct backend_stream *)list_entry(idle, struct cuda_stream, link);
        return 0;
    }
    if (cuda_enter(d, e) < 0)
        return -1;
    s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a stream");
    s->device = d;
    s->priority = priority;
    list_init(&s->jobs);
    list_init(&s->link);
    s->next = &s->jobs;
    if (CUDA_CALL(d, e, StreamCreateWithPriority, &s->stream, CU_STREAM_NON_BLOCKING, d->priorities[priority]) < 0)
        goto free_stream;
    s->flag = cuda_flag_take(&d->flags, &s->flag_address);
    *ret_stream = (struct backend_stream *)s;
    return 0;

free_stream:
    free(s);
    return -1;
}

static void release_workspace(struct cuda_stream *s)
{
    if (!s->workspace)
        return;
    cuda_on(s->device)->MemFreeAsync(s->workspace, s->stream);
    s->workspace = 0;
    s->device->workspaces_held--;
}

static void destroy(struct cuda_stream *s)
{
    cuda_flag_give(&s->device->flags, s->flag);
    if (!cuda_device_is_broken(s->device)) {
        release_workspace(s);
        cuda_on(s->device)->StreamDestroy(s->stream);
    }
    free(s);
}

void cuda_stream_free(struct backend_stream *stream)
{
    struct cuda_stream *s = cuda_stream(stream);
    struct cuda_device *d = s->device;
    struct error ignored;

    s->waited = NULL;
    if (d->idle_stream_count[s->priority] < IDLE_STREAMS_MAX && !cuda_device_is_broken(d)) {
        list_append(&d->idle_streams[s->priority], &s->link);
        d->idle_stream_count[s->priority]++;
        return;
    }
    cuda_enter(d, &ignored);
    destroy(s);
}

void cuda_streams_close(struct cuda_device *d)
{
    for (unsigned i = 0; i < PRIORITY_COUNT; i++) {
        list_for_each_safe (node, after, &d->idle_streams[i]) {
            list_remove(node);
            destroy(list_entry(node, struct cuda_stream, link));
        }
        d->idle_stream_count[i] = 0;
    }
}

int cuda_stream_need_workspace(struct cuda_stream *s, struct error *e)
{
    struct cuda_device *d = s->device;

    if (s->workspace)
        return 0;
    if (CUDA_CALL(d, e, MemAllocFromPoolAsync, &s->workspace, d->workspace_bytes, d->pool, s->stream) < 0)
        return -1;
    d->workspaces_held++;
    return 0;
}

void cuda_stream_rest(struct cuda_stream *s)
{
    if (s->device->workspaces_held > RESTING_WORKSPACES_MAX)
        release_workspace(s);
}
