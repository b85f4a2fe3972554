#include "ordered.h"

#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "job.h"
#include "session/session.h"

enum {
    FIRST_OPS = 4,     /* in the first sequence of a batch; later sequences are longer */
    GROWTH = 4,        /* the factor between them */
    MAX_TENSORS = 192, /* tensors of one sequence */
    LOOK_BACK = 12,    /* recent tensors to search for an equal one */
    ENOUGH_BYTES = 32 << 10
};

struct tensor_copy {
    struct native_tensor t; /* with pointers into this struct */
    int64_t shape[KOPS_MAX_RANK], strides[KOPS_MAX_RANK];
};

struct batch {
    bool started;                /* a request of this batch was sent */
    uint32_t started_generation; /* the connection that it was sent on */
    unsigned bound;
    unsigned n_ops, n_tensors;
    cuda_queue cuda_stream;
    pthread_t thread;      /* thread whose default stream `cuda_stream` may be */
    uint32_t generation;   /* generation of the connection whose buffer ids these are */
    uint64_t number, last; /* numbers of the first and last op */
    struct kops_options options;
    struct bytes tensors, ops;
    unsigned char names[ORDERED_MAX_OPS]; /* places of the ops' names, see session/client.h */
    uint16_t after[ORDERED_MAX_OPS];      /* numbers of the ops, counted from the first one */
    struct tensor_copy table[MAX_TENSORS];
};

enum kops_code batch_begin(struct kops_client *c, struct ordered_stream *stream, struct kops_error *e)
{
    if (stream->in_batch)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "a batch is open on this stream: kops_batch_end() comes first");
    if (!stream->batch)
        stream->batch = calloc(1, sizeof(*stream->batch));
    if (!stream->batch)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a batch");
    stream->in_batch = true;
    atomic_fetch_add(&c->batches, 1);
    stream->batch->started = false;
    stream->batch->bound = FIRST_OPS;
    return KOPS_OK;
}

/* ---- gathering ---- */

static bool same_tensor(const struct native_tensor *a, const struct native_tensor *b)
{
    return a->buffer == b->buffer && a->offset == b->offset && a->rank == b->rank && a->dtype == b->dtype &&
           !a->strides == !b->strides && !memcmp(a->shape, b->shape, a->rank * sizeof(a->shape[0])) &&
           (!a->strides || !memcmp(a->strides, b->strides, a->rank * sizeof(a->strides[0])));
}

static uint32_t place_of(struct batch *b, const struct native_tensor *t)
{
    struct tensor_copy *copy;

    for (unsigned i = b->n_tensors; i > 0 && i + LOOK_BACK > b->n_tensors; i--)
        if (same_tensor(&b->table[i - 1].t, t))
            return i - 1;
    copy = &b->table[b->n_tensors];
    copy->t = *t;
    memcpy(copy->shape, t->shape, t->rank * sizeof(t->shape[0]));
    copy->t.shape = copy->shape;
    if (t->strides) {
        memcpy(copy->strides, t->strides, t->rank * sizeof(t->strides[0]));
        copy->t.strides = copy->strides;
    }
    wire_gather_tensor(&b->tensors, t);
    return b->n_tensors++;
}

/* Compares the options that hold for a sequence as a whole. */
static bool same_options(const struct kops_options *a, const struct kops_options *b)
{
    return a->priority == b->priority && a->deadline_ms == b->deadline_ms;
}

static bool repeats(const struct kops_options *o)
{
    return o->warmup || o->repeat > 1;
}

/* Forgets the gathered ops, which were sent or dropped. */
static void forget(struct kops_client *c, struct ordered_stream *stream)
{
    struct batch *b = stream->batch;
    const bool held = b->n_ops > 0;

    b->n_ops = b->n_tensors = 0;
    b->tensors.length = b->ops.length = 0;
    b->tensors.failed = b->ops.failed = false;
    stream->gathered_from = 0;
    if (held)
        session_let_go(c);
}

enum kops_code batch_add(struct kops_client *c, struct ordered_stream *stream, cuda_queue cuda_stream,
                         const struct wire_run *run, uint32_t generation, uint64_t deadline, struct kops_error *e)
{
    static const struct kops_options defaults;
    const struct kops_options *options = run->how.options ? run->how.options : &defaults;
    const unsigned n = run->n_inputs + run->n_outputs;
    struct batch *b = stream->batch;
    uint32_t places[KOPS_MAX_OPERANDS];
    enum kops_code r = KOPS_OK;
    uint64_t number;

    if (b->n_ops && (b->n_ops >= b->bound || b->n_tensors + n > MAX_TENSORS || b->ops.length > ENOUGH_BYTES ||
                     c->ordered->number - b->number >= UINT16_MAX || b->generation != generation || repeats(options) ||
                     !same_options(&b->options, options)))
        r = batch_flush(c, stream, cuda_stream, false, deadline, e);
    if (r)
        return r;
    number = ++c->ordered->number;
    if (!b->n_ops) {
        b->generation = generation;
        b->number = stream->gathered_from = number;
        b->options = *options;
        b->cuda_stream = cuda_stream;
        b->thread = pthread_self();
        session_hold(c);
    }
    for (unsigned i = 0; i < n; i++)
        places[i] = place_of(b, &run->tensors[i]);
    wire_gather_op(&b->ops, run, places);
    b->last = number;
    b->after[b->n_ops] = (uint16_t)(number - b->number);
    b->names[b->n_ops++] = names_place(c, run->op);
    if (b->tensors.failed || b->ops.failed) {
        forget(c, stream);
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for the ops of a batch, which were dropped");
    }
    return repeats(options) ? batch_flush(c, stream, cuda_stream, false, deadline, e) : KOPS_OK;
}

/* ---- sending ---- */

static bool same_connection(struct kops_client *c, struct job *job)
{
    const struct ordered_stream *stream = job->context;
    struct batch *b = stream->batch;

    job->order->starts = !b->started || b->started_generation != c->generation;
    b->started_generation = c->generation;
    return b->generation == c->generation;
}

static enum kops_code not_the_same(struct kops_client *c, struct job *job, uint64_t deadline, struct kops_error *e)
{
    (void)c;
    (void)job;
    (void)deadline;
    return fail(e, KOPS_ERR_CONNECTION_LOST, "the connection was lost before the ops of a batch were sent");
}

enum kops_code batch_flush(struct kops_client *c, struct ordered_stream *stream, cuda_queue cuda_stream, bool waits,
                           uint64_t deadline, struct kops_error *e)
{
    struct batch *b = stream->batch;
    struct wire_gathered w = {.tensors = &b->tensors,
                              .ops = &b->ops,
                              .n_tensors = b->n_tensors,
                              .n_ops = b->n_ops,
                              .how = {.options = &b->options, .no_timing = true}};
    struct ordered_work work = {.stream = stream,
                                .cuda_stream = cuda_stream,
                                .how = &w.how,
                                .waits = waits,
                                .number = b->number,
                                .last = b->last,
                                .n_ops = b->n_ops,
                                .names = b->names,
                                .after = b->after};
    struct job job = {.pack = wire_pack_gathered,
                      .wire = &w,
                      .resolve = same_connection,
                      .ensure = not_the_same,
                      .context = stream,
                      .decode = wire_decode_nothing,
                      .order = &work};
    enum kops_code r;

    if (!b->n_ops)
        return KOPS_OK;
    w.how.priority = client_priority(c, &b->options);
    r = job_send(c, &job, deadline, NULL, e);
    if (!r) {
        b->started = true;
        if (b->bound * GROWTH <= ORDERED_MAX_OPS)
            b->bound *= GROWTH;
    }
    forget(c, stream);
    return r;
}

/* A thread cannot reach the per-thread default stream of another thread. */
static bool can_reach(const struct batch *b)
{
    return b->cuda_stream != CUDA_STREAM_PER_THREAD || pthread_equal(b->thread, pthread_self());
}

static enum kops_code flush_from_elsewhere(struct kops_client *c, struct ordered_stream *stream, uint64_t deadline,
                                           struct kops_error *e)
{
    const struct cuda_driver *d = c->ordered->driver;
    cuda_status status = d->context_push(stream->context);
    enum kops_code r;

    if (status)
        return cuda_fail(d, e, KOPS_ERR_NO_CUDA, status, "cuCtxPushCurrent");
    r = batch_flush(c, stream, stream->batch->cuda_stream, false, deadline, e);
    cuda_pop(d);
    return r;
}

enum kops_code batch_flush_all(struct kops_client *c, uint64_t deadline, struct kops_error *e)
{
    struct ordered *o = c->ordered;
    enum kops_code r = KOPS_OK;

    for (unsigned i = 0; i < TIMELINE_STREAMS && session_is_holding(c) && !r; i++) {
        struct ordered_stream *stream = &o->streams[i];

        if (!stream->batch || !stream->batch->n_ops || !can_reach(stream->batch))
            continue;
        if (!ordered_take(c, stream, deadline))
            return fail(e, KOPS_ERR_TIMEOUT, "another thread's call on a stream did not end in time");
        r = flush_from_elsewhere(c, stream, deadline, e);
        ordered_leave(c, stream);
    }
    return r;
}

enum kops_code batch_end(struct kops_client *c, struct ordered_stream *stream, cuda_queue cuda_stream,
                         uint64_t deadline, struct kops_error *e)
{
    struct batch *b = stream->batch;
    const bool gathered = b->n_ops > 0;
    enum kops_code r = KOPS_OK, waited = KOPS_OK;

    if (gathered)
        r = batch_flush(c, stream, cuda_stream, true, deadline, e);
    if (b->started && (!gathered || r)) /* an error keeps its message */
        waited = ordered_wait_for_last(c, stream, cuda_stream, r ? NULL : e);
    stream->in_batch = false;
    atomic_fetch_sub(&c->batches, 1);
    return r ? r : waited;
}

bool batch_is_open(struct kops_client *c, cuda_queue cuda_stream)
{
    struct ordered_stream *stream = NULL;

    return atomic_load(&c->batches) && ordered_find(c, cuda_stream, &stream) && stream && stream->in_batch;
}

enum kops_code batch_settle(struct kops_client *c, cuda_queue cuda_stream, uint64_t deadline, struct kops_error *e)
{
    struct ordered_stream *stream;
    enum kops_code r;

    if (!batch_is_open(c, cuda_stream))
        return KOPS_OK;
    r = ordered_enter(c, cuda_stream, deadline, &stream, e);
    if (r == KOPS_ERR_CAPTURING) {
        fail_clear(e);
        return KOPS_OK;
    }
    if (r)
        return r;
    if (stream->in_batch) { /* false where another thread ended the batch meanwhile */
        r = batch_end(c, stream, cuda_stream, deadline, e);
        (void)batch_begin(c, stream, e); /* cannot fail: the batch's memory exists */
    }
    ordered_leave(c, stream);
    return r;
}

void batch_join(struct ordered_stream *stream, struct ordered_work *work)
{
    work->starts = !stream->batch->started;
    work->waits = false;
    stream->batch->started = true;
}

void batch_close_all(struct kops_client *c)
{
    for (unsigned i = 0; c->ordered && i < TIMELINE_STREAMS; i++) {
        struct ordered_stream *stream = &c->ordered->streams[i];

        if (!stream->batch)
            continue;
        forget(c, stream);
        bytes_free(&stream->batch->tensors);
        bytes_free(&stream->batch->ops);
        free(stream->batch);
        stream->batch = NULL;
        stream->in_batch = false;
    }
    atomic_store(&c->batches, 0);
}
