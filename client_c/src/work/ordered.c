#include "ordered.h"

#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "session/names.h"

enum {
    COLLECT_AT = 8,   /* unanswered requests from which on replies are taken in by the way, */
    COLLECT_EACH = 16 /* on the socket, where looking is a system call, once in so many */
};

/* ---- errors ---- */

enum kops_code ordered_report(struct kops_client *c, struct kops_error *e)
{
    struct ordered *o = c->ordered;

    if (!o || !o->failed.code)
        return KOPS_OK;
    *e = o->failed;
    o->failed.code = KOPS_OK;
    return e->code;
}

static void note_failure(struct kops_client *c, const struct call *call, const struct kops_error *error)
{
    struct kops_error *f = &c->ordered->failed;
    uint64_t number = call->number;
    const char *name = call->name;
    int64_t index = 0;

    if (call->gathered) {
        if (!kops_error_number(error, "op_index", &index) || index < 0 || index >= call->n_ops)
            index = 0;
        number += call->after[index];
        name = names_at(c, call->ops[index]);
    }
    *f = *error;
    fail(f, error->code, "call %llu%s%s%s on a CUDA stream: %.400s", (unsigned long long)number, name ? " (" : "",
         name ? name : "", name ? ")" : "", error->message);
    f->n_details = error->n_details;
    memcpy(f->details, error->details, sizeof(f->details));
    if (f->n_details == sizeof(f->details) / sizeof(f->details[0]))
        f->n_details--;
    fail_number(f, f->code, "call", (int64_t)number);
}

void ordered_ended(struct kops_client *c, struct call *call, const struct kops_error *error)
{
    struct ordered *o = c->ordered;
    struct lane *lane = call->lane;

    if (!o)
        return;
    lane->outstanding--;
    o->outstanding--;
    lane->ended = call->last;
    if (error && (!o->failed.code || call->number < o->failed_number)) {
        o->failed_number = call->number;
        note_failure(c, call, error);
    }
}

/* ---- streams ---- */

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
    return KOPS_OK;
}

static enum kops_code check_capture(const struct cuda_driver *d, cuda_queue stream, struct kops_error *e)
{
    int capturing = 0;
    cuda_status status = d->stream_is_capturing(stream, &capturing);

    if (capturing || (status >= CUDA_ERROR_CAPTURE_FIRST && status <= CUDA_ERROR_CAPTURE_LAST))
        return fail(e, KOPS_ERR_CAPTURING,
                    "the CUDA stream is being captured into a graph, which cannot hold the daemon's work: call outside "
                    "the capture, or define a program (kops_program_define())");
    if (status)
        return cuda_fail(d, e, KOPS_ERR_DEVICE_ERROR, status, "cuStreamIsCapturing");
    return KOPS_OK;
}

static bool same_stream(const struct lane *l, cuda_context context, unsigned long long id)
{
    return l->used && l->id == id && l->context == context;
}

/* A lane that no stream uses now; the longest unused one when all were. */
static struct lane *free_lane(struct kops_client *c)
{
    const uint64_t limit = c->info.info.limits.streams;
    const unsigned n = limit && limit < TIMELINE_STREAMS ? (unsigned)limit : TIMELINE_STREAMS;
    struct ordered *o = c->ordered;
    struct lane *found = NULL;

    for (unsigned i = 0; i < n; i++) {
        struct lane *l = &o->lanes[i];

        /* From the top: blocking runs usually have the daemon's stream 0. */
        l->index = n - 1 - i;
        if (!l->used)
            return l;
        if (!l->taken && !l->outstanding && !batch_open(l) && (!found || l->touched < found->touched))
            found = l;
    }
    return found;
}

static struct lane *present_lane(struct ordered *o, cuda_context context, unsigned long long id)
{
    if (o->last && same_stream(o->last, context, id))
        return o->last;
    for (unsigned i = 0; i < TIMELINE_STREAMS && o->lanes[i].used; i++)
        if (same_stream(&o->lanes[i], context, id))
            return &o->lanes[i];
    return NULL;
}

static unsigned long long stream_id(const struct cuda_driver *d, cuda_queue stream)
{
    unsigned long long id;

    return d->stream_get_id && !d->stream_get_id(stream, &id) ? id : (uintptr_t)stream;
}

bool ordered_find(struct kops_client *c, void *stream, struct lane **ret_lane)
{
    const struct cuda_driver *d = c->ordered->driver;
    cuda_context context = NULL;

    if (stream == KOPS_ALL_STREAMS || d->context_get(&context) || !context)
        return false;
    *ret_lane = present_lane(c->ordered, context, stream_id(d, stream));
    return true;
}

static struct lane *find_lane(struct kops_client *c, cuda_context context, unsigned long long id)
{
    struct lane *l = present_lane(c->ordered, context, id);

    if (l)
        return l;
    l = free_lane(c);
    if (!l)
        return NULL;
    l->used = true;
    l->context = context;
    l->id = id;
    l->generation = 0;
    return l;
}

bool lane_take(struct kops_client *c, struct lane *lane, uint64_t deadline)
{
    while (lane->taken) {
        if (deadline != DEADLINE_NEVER && clock_ns() >= deadline)
            return false;
        session_sleep(c, deadline);
    }
    lane->taken = true;
    return true;
}

enum kops_code ordered_enter(struct kops_client *c, void *stream, uint64_t deadline, struct lane **ret_lane,
                             struct kops_error *e)
{
    const struct cuda_driver *d;
    unsigned long long id;
    cuda_context context = NULL;
    struct lane *lane;
    enum kops_code r = ordered_report(c, e);

    if (!r && stream == KOPS_ALL_STREAMS)
        r = fail(e, KOPS_ERR_BAD_ARGUMENT, "KOPS_ALL_STREAMS is no stream to put work on");
    if (!r && !c->ordered)
        r = load_driver(c, e);
    if (r)
        return r;
    d = c->ordered->driver;
    if (d->context_get(&context) || !context)
        return fail(e, KOPS_ERR_NO_CUDA, "the calling thread has no current CUDA context");
    r = check_capture(d, stream, e);
    if (r)
        return r;
    id = stream_id(d, stream);
    do {
        lane = find_lane(c, context, id);
        if (!lane)
            return fail(e, KOPS_ERR_QUOTA_EXCEEDED, "%d CUDA streams have ordered calls under way, no more can",
                        TIMELINE_STREAMS);
        if (!lane_take(c, lane, deadline))
            return fail(e, KOPS_ERR_TIMEOUT, "another thread's call on the stream did not end in time");
        if (!same_stream(lane, context, id)) /* lent to another stream meanwhile */
            ordered_leave(c, lane);
    } while (!same_stream(lane, context, id));
    c->ordered->last = lane;
    lane->touched = c->ordered->number;
    *ret_lane = lane;
    return KOPS_OK;
}

void ordered_leave(struct kops_client *c, struct lane *lane)
{
    lane->taken = false;
    if (c->waiters)
        pthread_cond_broadcast(&c->changed);
}

uint64_t ordered_oldest(const struct kops_client *c)
{
    uint64_t oldest = 0;

    for (unsigned i = 0; c->ordered && i < TIMELINE_STREAMS && c->ordered->lanes[i].used; i++) {
        const struct lane *l = &c->ordered->lanes[i];
        uint64_t of_lane = l->outstanding ? (l->first > l->ended ? l->first : l->ended + 1) : batch_oldest(l);

        if (of_lane && (!oldest || of_lane < oldest))
            oldest = of_lane;
    }
    return oldest;
}

void ordered_collect(struct kops_client *c)
{
    if (c->inflight >= COLLECT_AT && c->t.ring.memory)
        session_drain(c);
    else if (c->inflight * 2 >= c->max_inflight && c->inflight % COLLECT_EACH == 0)
        session_poll(c);
}

void ordered_collect_all(struct kops_client *c)
{
    if (!c->ordered || !c->ordered->outstanding)
        return;
    if (!c->t.ring.memory || (c->ordered->timeline && atomic_load(&c->ordered->timeline->over)))
        session_poll(c);
    else
        session_drain(c);
}

/* ---- the page ---- */

bool ordered_current(const struct kops_client *c)
{
    return c->ordered->timeline && c->ordered->timeline->generation == c->generation;
}

static enum kops_code make_timeline(struct kops_client *c, uint64_t deadline, struct kops_error *e)
{
    struct ordered *o = c->ordered;
    struct wire_timelines made = {.fd = -1};
    struct timeline *t;
    uint32_t generation;
    enum kops_code r =
        session_call(c, wire_pack_timelines, NULL, -1, wire_decode_timelines, &made, deadline, SESSION_ATTEMPTS, e);

    generation = c->generation;
    if (r || c->lost || c->t.fd < 0) {
        if (made.fd >= 0)
            close(made.fd);
        return r;
    }
    r = timeline_open(o->driver, &made, c->t.fd, generation, &t, e);
    if (r)
        return r;
    t->next = o->timeline;
    o->timeline = t;
    return KOPS_OK;
}

enum kops_code ordered_renew(struct kops_client *c, uint64_t deadline, struct kops_error *e)
{
    struct ordered *o = c->ordered;
    enum kops_code r;

    if (o->making) {
        session_sleep(c, deadline);
        if (deadline != DEADLINE_NEVER && clock_ns() >= deadline)
            return fail(e, KOPS_ERR_TIMEOUT, "the page of timelines was not there in time");
        return KOPS_OK;
    }
    o->making = true;
    r = make_timeline(c, deadline, e);
    o->making = false;
    if (c->waiters)
        pthread_cond_broadcast(&c->changed);
    return r;
}

/* ---- one call ---- */

void ordered_assign(struct kops_client *c, struct ordered_work *work)
{
    const uint64_t next = work->lane->value + 1, ready = work->starts ? next : 0;

    (void)c;
    if (work->raw) {
        work->raw->stream = work->lane->index;
        work->raw->ready = ready;
        work->raw->done = next;
    } else {
        work->how->stream = work->lane->index;
        work->how->ready = ready;
        work->how->done = next;
    }
}

static cuda_status put_on_stream(const struct cuda_driver *d, cuda_queue stream, struct cuda_memory_op *ops, unsigned n)
{
    if (d->stream_batch)
        return n ? d->stream_batch(stream, n, ops, 0) : 0;
    for (unsigned i = 0; i < n; i++) {
        cuda_status status = ops[i].operation == CUDA_OP_WRITE_64
                                 ? d->stream_write64(stream, ops[i].address, ops[i].value, ops[i].flags)
                                 : d->stream_wait64(stream, ops[i].address, ops[i].value, ops[i].flags);

        if (status)
            return status;
    }
    return 0;
}

static enum kops_code find_base(struct kops_client *c, struct lane *lane, struct kops_error *e)
{
    const struct timeline *t = c->ordered->timeline;
    cuda_status status;

    if (lane->generation == t->generation)
        return KOPS_OK;
    status = t->driver->host_device_pointer(&lane->base, (void *)t->words, 0);
    if (status)
        return cuda_fail(t->driver, e, KOPS_ERR_DEVICE_ERROR, status, "cuMemHostGetDevicePointer");
    lane->generation = t->generation;
    return KOPS_OK;
}

static enum kops_code put_words(struct kops_client *c, struct lane *lane, cuda_queue stream, uint64_t ready,
                                uint64_t wait, struct kops_error *e)
{
    struct cuda_memory_op ops[2];
    unsigned n = 0;
    cuda_status status;
    enum kops_code r = find_base(c, lane, e);

    if (r)
        return r;
    if (ready)
        ops[n++] = (struct cuda_memory_op){
            .operation = CUDA_OP_WRITE_64, .address = lane->base + timeline_ready_offset(lane->index), .value = ready};
    if (wait)
        ops[n++] = (struct cuda_memory_op){.operation = CUDA_OP_WAIT_64,
                                           .address = lane->base + timeline_done_offset(lane->index),
                                           .value = wait,
                                           .flags = CUDA_WAIT_GEQ};
    status = put_on_stream(c->ordered->driver, stream, ops, n);
    if (status >= CUDA_ERROR_CAPTURE_FIRST && status <= CUDA_ERROR_CAPTURE_LAST)
        return cuda_fail(c->ordered->driver, e, KOPS_ERR_CAPTURING, status, "the CUDA stream is being captured");
    if (status)
        return cuda_fail(c->ordered->driver, e, KOPS_ERR_DEVICE_ERROR, status, "putting an ordered call on the stream");
    return KOPS_OK;
}

enum kops_code ordered_commit(struct kops_client *c, struct ordered_work *work, struct call *call, struct kops_error *e)
{
    struct ordered *o = c->ordered;
    struct lane *lane = work->lane;
    const uint64_t next = lane->value + 1;
    enum kops_code r = put_words(c, lane, work->stream, work->starts ? next : 0, work->waits ? next : 0, e);

    /* Even where it failed, the first half may be on the stream. */
    lane->value = next;
    if (r)
        return r;
    if (!work->number) {
        work->number = work->last = o->number + 1;
        o->number++;
    }
    if (!lane->outstanding)
        lane->first = work->number;
    lane->outstanding++;
    o->outstanding++;
    call->lane = lane;
    call->number = work->number;
    call->last = work->last;
    call->n_ops = work->n_ops;
    call->name = work->name;
    call->gathered = work->names != NULL;
    if (work->names) {
        memcpy(call->ops, work->names, work->n_ops);
        memcpy(call->after, work->after, work->n_ops * sizeof(work->after[0]));
    }
    return KOPS_OK;
}

enum kops_code ordered_wait_for_last(struct kops_client *c, struct lane *lane, cuda_queue stream, struct kops_error *e)
{
    if (!ordered_current(c) || lane->generation != c->ordered->timeline->generation)
        return KOPS_OK; /* of a connection that is over: nothing runs any more */
    return put_words(c, lane, stream, 0, lane->value, e);
}

/* ---- the end ---- */

bool ordered_gathering(const struct kops_client *c)
{
    return c->ordered && c->ordered->gathering;
}

struct bytes *ordered_releases(struct kops_client *c)
{
    struct ordered *o = c->ordered;

    /* Ids of another connection mean something else on this one. */
    if (o->releases_generation != c->generation)
        o->releases.length = 0;
    o->releases_generation = c->generation;
    return &o->releases;
}

/* No stream waits on a page after this; false: nobody can tell. The watchers release what still does. */
static bool streams_drained(const struct ordered *o)
{
    bool drained = true;

    for (unsigned i = 0; i < TIMELINE_STREAMS && o->lanes[i].used; i++) {
        cuda_context context = o->lanes[i].context;
        bool seen = false;

        for (unsigned k = 0; k < i && !seen; k++)
            seen = o->lanes[k].context == context;
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
    while (o->outstanding && c->t.fd >= 0 && !c->lost && (deadline == DEADLINE_NEVER || clock_ns() < deadline))
        session_progress(c, deadline);
    if (c->t.fd >= 0 && !c->lost)
        session_lost(c, KOPS_ERR_CONNECTION_LOST, "the client was closed");
    drained = !o->timeline || streams_drained(o);
    while (o->timeline) {
        struct timeline *t = o->timeline;

        o->timeline = t->next;
        if (drained)
            timeline_close(t);
    }
    for (unsigned i = 0; i < TIMELINE_STREAMS; i++)
        gather_free(o->lanes[i].gather);
    bytes_free(&o->releases);
    free(o);
    c->ordered = NULL;
}

void ordered_forget(struct kops_client *c)
{
    for (struct timeline *t = c->ordered ? c->ordered->timeline : NULL; t; t = t->next)
        timeline_forget(t);
    c->ordered = NULL; /* what it holds is the parent's, and leaks once */
}
