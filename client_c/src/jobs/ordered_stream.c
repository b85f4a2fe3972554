/* Which of the daemon's streams a CUDA stream has, and the end of all of them. */
#include "ordered.h"

#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "session/receive.h"

/* This process is a child: its parent owns the driver's objects and the watchers. */
static void forget(struct kops_client *c)
{
    for (struct timeline *t = c->ordered->timeline; t; t = t->next)
        timeline_forget(t);
    c->ordered = NULL; /* leaks once: the members are the parent's */
    atomic_store(&c->batches, 0);
}

static enum kops_code load_driver(struct kops_client *c, struct kops_error *e)
{
    const struct cuda_driver *d;

    if (!(c->features & FEATURE_ORDERED))
        return fail(e, KOPS_ERR_UNSUPPORTED,
                    "the daemon has no ordered calls (it serves no GPU that can wait in memory): use kops_run()");
    d = cuda_load(e);
    if (!d)
        return KOPS_ERR_NO_CUDA;
    if (!d->host_register || !d->host_unregister || !d->host_device_pointer || !d->stream_is_capturing ||
        (!d->stream_batch && (!d->stream_write64 || !d->stream_wait64)))
        return fail(e, KOPS_ERR_UNSUPPORTED, "the CUDA driver has no 64-bit stream memory operations: it is too old");
    if (!c->ordered)
        c->ordered = calloc(1, sizeof(*c->ordered));
    if (!c->ordered)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for ordered calls");
    c->ordered->driver = d;
    c->forget_ordered = forget;
    return KOPS_OK;
}

static enum kops_code check_capture(const struct cuda_driver *d, cuda_queue cuda_stream, struct kops_error *e)
{
    int capturing = 0;
    cuda_status status = d->stream_is_capturing(cuda_stream, &capturing);

    if (capturing || (status >= CUDA_ERROR_CAPTURE_FIRST && status <= CUDA_ERROR_CAPTURE_LAST))
        return fail(e, KOPS_ERR_CAPTURING,
                    "the CUDA stream is being captured into a graph, which cannot hold the daemon's work: call outside "
                    "the capture, or define a program (kops_program_define())");
    if (status)
        return cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, "cuStreamIsCapturing");
    return KOPS_OK;
}

static bool same_stream(const struct ordered_stream *l, cuda_context context, unsigned long long id)
{
    return l->used && l->id == id && l->context == context;
}

/* An ordered stream that no CUDA stream uses now; the longest unused one when all were used. */
static struct ordered_stream *free_stream(struct kops_client *c)
{
    const uint64_t limit = c->info.info.limits.streams;
    const unsigned n = limit && limit < TIMELINE_STREAMS ? (unsigned)limit : TIMELINE_STREAMS;
    struct ordered *o = c->ordered;
    struct ordered_stream *found = NULL;

    for (unsigned i = 0; i < n; i++) {
        struct ordered_stream *l = &o->streams[i];

        /* From the top: blocking runs usually have the daemon's stream 0. */
        l->index = n - 1 - i;
        if (!l->used)
            return l;
        if (!l->taken && !l->outstanding && !l->in_batch && (!found || l->touched < found->touched))
            found = l;
    }
    return found;
}

static struct ordered_stream *present_stream(struct ordered *o, cuda_context context, unsigned long long id)
{
    if (o->last && same_stream(o->last, context, id))
        return o->last;
    for (unsigned i = 0; i < TIMELINE_STREAMS && o->streams[i].used; i++)
        if (same_stream(&o->streams[i], context, id))
            return &o->streams[i];
    return NULL;
}

static unsigned long long stream_id(const struct cuda_driver *d, cuda_queue cuda_stream)
{
    unsigned long long id;

    return d->stream_get_id && !d->stream_get_id(cuda_stream, &id) ? id : (uintptr_t)cuda_stream;
}

bool ordered_find(struct kops_client *c, void *cuda_stream, struct ordered_stream **ret_stream)
{
    const struct cuda_driver *d = c->ordered->driver;
    cuda_context context = NULL;

    if (cuda_stream == KOPS_ALL_STREAMS || d->context_get(&context) || !context)
        return false;
    *ret_stream = present_stream(c->ordered, context, stream_id(d, cuda_stream));
    return true;
}

static struct ordered_stream *find_stream(struct kops_client *c, cuda_context context, unsigned long long id)
{
    struct ordered_stream *l = present_stream(c->ordered, context, id);

    if (l)
        return l;
    l = free_stream(c);
    if (!l)
        return NULL;
    l->used = true;
    l->context = context;
    l->id = id;
    l->generation = 0;
    return l;
}

bool ordered_take(struct kops_client *c, struct ordered_stream *stream, uint64_t deadline)
{
    while (stream->taken) {
        if (deadline_passed(deadline))
            return false;
        session_sleep(c, deadline);
    }
    stream->taken = true;
    return true;
}

enum kops_code ordered_enter(struct kops_client *c, void *cuda_stream, uint64_t deadline,
                             struct ordered_stream **ret_stream, struct kops_error *e)
{
    const struct cuda_driver *d;
    unsigned long long id;
    cuda_context context = NULL;
    struct ordered_stream *stream;
    enum kops_code r = ordered_report(c, e);

    if (!r && cuda_stream == KOPS_ALL_STREAMS)
        r = fail(e, KOPS_ERR_BAD_ARGUMENT, "KOPS_ALL_STREAMS is no stream to put work on");
    if (!r && !c->ordered)
        r = load_driver(c, e);
    if (r)
        return r;
    d = c->ordered->driver;
    if (d->context_get(&context) || !context)
        return fail(e, KOPS_ERR_NO_CUDA, "the calling thread has no current CUDA context");
    r = check_capture(d, cuda_stream, e);
    if (r)
        return r;
    id = stream_id(d, cuda_stream);
    do {
        stream = find_stream(c, context, id);
        if (!stream)
            return fail(e, KOPS_ERR_QUOTA_EXCEEDED, "%d CUDA streams have ordered calls under way, no more can",
                        TIMELINE_STREAMS);
        if (!ordered_take(c, stream, deadline))
            return fail(e, KOPS_ERR_TIMEOUT, "another thread's call on the stream did not end in time");
        if (!same_stream(stream, context, id)) /* lent to another CUDA stream meanwhile */
            ordered_leave(c, stream);
    } while (!same_stream(stream, context, id));
    c->ordered->last = stream;
    stream->touched = c->ordered->number;
    *ret_stream = stream;
    return KOPS_OK;
}

void ordered_leave(struct kops_client *c, struct ordered_stream *stream)
{
    stream->taken = false;
    client_changed(c);
}

uint64_t ordered_oldest(const struct kops_client *c)
{
    uint64_t oldest = 0;

    for (unsigned i = 0; c->ordered && i < TIMELINE_STREAMS && c->ordered->streams[i].used; i++) {
        const struct ordered_stream *l = &c->ordered->streams[i];
        uint64_t of_stream = l->outstanding ? (l->first > l->ended ? l->first : l->ended + 1) : l->gathered_from;

        if (of_stream && (!oldest || of_stream < oldest))
            oldest = of_stream;
    }
    return oldest;
}

/* ---- the end ---- */

/* No stream waits on a page after this. False: a stream may; the watchers release it. */
static bool streams_drained(const struct ordered *o)
{
    bool drained = true;

    for (unsigned i = 0; i < TIMELINE_STREAMS && o->streams[i].used; i++) {
        cuda_context context = o->streams[i].context;
        bool seen = false;

        for (unsigned k = 0; k < i && !seen; k++)
            seen = o->streams[k].context == context;
        if (seen || o->driver->context_push(context))
            continue;
        if (o->driver->context_synchronize())
            drained = false;
        cuda_pop(o->driver);
    }
    return drained;
}

void ordered_close(struct kops_client *c)
{
    struct ordered *o = c->ordered;
    const uint64_t deadline = client_deadline(c, 0);
    bool drained;

    if (!o)
        return;
    while (o->outstanding && client_is_connected(c) && (deadline == DEADLINE_NEVER || clock_ns() < deadline))
        session_progress(c, deadline);
    if (client_is_connected(c))
        session_lost(c, KOPS_ERR_CONNECTION_LOST, "the client was closed");
    drained = !o->timeline || streams_drained(o);
    while (o->timeline) {
        struct timeline *t = o->timeline;

        o->timeline = t->next;
        if (drained)
            timeline_close(t);
    }
    free(o);
    c->ordered = NULL;
}
