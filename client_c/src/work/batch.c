/* Batches: ops of one lane that the caller's stream waits for together, gathered into sequences.
 *
 * The first request of a batch waits for the stream, each has a number of its own to be done with, and the end of the
 * batch lets the stream wait for the last one. Sequences start short, so that the GPU is not idle while the first
 * is gathered. Lock held. */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "job.h"
#include "ordered.h"
#include "session/names.h"

enum {
    FIRST_OPS = 4,     /* in the first sequence of a batch; each is longer than the one before */
    GROWTH = 4,        /* by that factor */
    MAX_TENSORS = 192, /* of one sequence */
    LOOK_BACK = 12,    /* tensors among which an equal one is looked for */
    ENOUGH_BYTES = 32 << 10
};

struct tensor_copy {
    struct native_tensor t; /* with pointers into this struct */
    int64_t shape[KOPS_MAX_RANK], strides[KOPS_MAX_RANK];
};

struct gather {
    bool open;                   /* between begin and end */
    bool started;                /* a request of this batch was sent, */
    uint32_t started_generation; /* on that connection */
    unsigned bound;
    unsigned n_ops, n_tensors;
    cuda_queue stream;
    pthread_t thread;      /* for which `stream` has its meaning, where it is that thread's default one */
    uint32_t generation;   /* of the connection whose buffer ids these are */
    uint64_t number, last; /* of the first and last op */
    struct kops_options options;
    struct bytes tensors, ops;
    unsigned char names[CALL_MAX_OPS]; /* their places, see names.h */
    uint16_t after[CALL_MAX_OPS];      /* numbers, counted from the first one */
    struct tensor_copy table[MAX_TENSORS];
};

bool batch_open(const struct lane *lane)
{
    return lane->gather && lane->gather->open;
}

enum kops_code batch_begin(struct lane *lane, struct kops_error *e)
{
    if (batch_open(lane))
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "a batch is open on this stream: kops_batch_end() comes first");
    if (!lane->gather)
        lane->gather = calloc(1, sizeof(*lane->gather));
    if (!lane->gather)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a batch");
    lane->gather->open = true;
    lane->gather->started = false;
    lane->gather->bound = FIRST_OPS;
    return KOPS_OK;
}

/* ---- gathering ---- */

static bool same_tensor(const struct native_tensor *a, const struct native_tensor *b)
{
    return a->buffer == b->buffer && a->offset == b->offset && a->rank == b->rank && a->dtype == b->dtype &&
           !a->strides == !b->strides && !memcmp(a->shape, b->shape, a->rank * sizeof(a->shape[0])) &&
           (!a->strides || !memcmp(a->strides, b->strides, a->rank * sizeof(a->strides[0])));
}

static uint32_t place_of(struct gather *g, const struct native_tensor *t)
{
    struct tensor_copy *copy;

    for (unsigned i = g->n_tensors; i > 0 && i + LOOK_BACK > g->n_tensors; i--)
        if (same_tensor(&g->table[i - 1].t, t))
            return i - 1;
    copy = &g->table[g->n_tensors];
    copy->t = *t;
    memcpy(copy->shape, t->shape, t->rank * sizeof(t->shape[0]));
    copy->t.shape = copy->shape;
    if (t->strides) {
        memcpy(copy->strides, t->strides, t->rank * sizeof(t->strides[0]));
        copy->t.strides = copy->strides;
    }
    wire_gather_tensor(&g->tensors, t);
    return g->n_tensors++;
}

/* What holds for the sequence as a whole. */
static bool same_options(const struct kops_options *a, const struct kops_options *b)
{
    return a->priority == b->priority && a->deadline_ms == b->deadline_ms;
}

static bool repeats(const struct kops_options *o)
{
    return o->warmup || o->repeat > 1;
}

static void forget(struct kops_client *c, struct gather *g)
{
    if (g->n_ops)
        c->ordered->gathering--;
    g->n_ops = g->n_tensors = 0;
    g->tensors.length = g->ops.length = 0;
    g->tensors.failed = g->ops.failed = false;
}

enum kops_code batch_add(struct kops_client *c, struct lane *lane, cuda_queue stream, const struct wire_run *run,
                         uint32_t generation, uint64_t deadline, struct kops_error *e)
{
    static const struct kops_options defaults;
    const struct kops_options *options = run->how.options ? run->how.options : &defaults;
    const unsigned n = run->n_inputs + run->n_outputs;
    struct gather *g = lane->gather;
    uint32_t places[KOPS_MAX_OPERANDS];
    enum kops_code r = KOPS_OK;
    uint64_t number;

    if (g->n_ops && (g->n_ops >= g->bound || g->n_tensors + n > MAX_TENSORS || g->ops.length > ENOUGH_BYTES ||
                     c->ordered->number - g->number >= UINT16_MAX || g->generation != generation || repeats(options) ||
                     !same_options(&g->options, options)))
        r = batch_flush(c, lane, stream, false, deadline, e);
    if (r)
        return r;
    number = ++c->ordered->number;
    if (!g->n_ops) {
        g->generation = generation;
        g->number = number;
        g->options = *options;
        g->stream = stream;
        g->thread = pthread_self();
        c->ordered->gathering++;
    }
    for (unsigned i = 0; i < n; i++)
        places[i] = place_of(g, &run->tensors[i]);
    wire_gather_op(&g->ops, run, places);
    g->last = number;
    g->after[g->n_ops] = (uint16_t)(number - g->number);
    g->names[g->n_ops++] = names_place(c, run->op);
    if (g->tensors.failed || g->ops.failed) {
        forget(c, g);
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for the ops of a batch, which were dropped");
    }
    return repeats(options) ? batch_flush(c, lane, stream, false, deadline, e) : KOPS_OK;
}

/* ---- sending ---- */

static bool same_connection(struct kops_client *c, struct job *job)
{
    const struct lane *lane = job->context;
    struct gather *g = lane->gather;

    job->order->starts = !g->started || g->started_generation != c->generation;
    g->started_generation = c->generation;
    return g->generation == c->generation;
}

static enum kops_code not_the_same(struct kops_client *c, struct job *job, uint64_t deadline, struct kops_error *e)
{
    (void)c;
    (void)job;
    (void)deadline;
    return fail(e, KOPS_ERR_CONNECTION_LOST, "the connection was lost before the ops of a batch were sent");
}

enum kops_code batch_flush(struct kops_client *c, struct lane *lane, cuda_queue stream, bool waits, uint64_t deadline,
                           struct kops_error *e)
{
    struct gather *g = lane->gather;
    struct wire_gathered w = {.tensors = &g->tensors,
                              .ops = &g->ops,
                              .n_tensors = g->n_tensors,
                              .n_ops = g->n_ops,
                              .how = {.options = &g->options, .no_timing = true}};
    struct ordered_work work = {.lane = lane,
                                .stream = stream,
                                .how = &w.how,
                                .waits = waits,
                                .number = g->number,
                                .last = g->last,
                                .n_ops = g->n_ops,
                                .names = g->names,
                                .after = g->after};
    struct job job = {.pack = wire_pack_gathered,
                      .wire = &w,
                      .resolve = same_connection,
                      .ensure = not_the_same,
                      .context = lane,
                      .decode = wire_decode_nothing,
                      .order = &work};
    enum kops_code r;

    if (!g->n_ops)
        return KOPS_OK;
    w.how.priority = client_priority(c, &g->options);
    r = job_send(c, &job, deadline, NULL, e);
    if (!r) {
        g->started = true;
        if (g->bound * GROWTH <= CALL_MAX_OPS)
            g->bound *= GROWTH;
    }
    forget(c, g);
    if (!c->ordered->gathering && c->ordered->releases.length) {
        struct bytes *late = ordered_releases(c);

        bytes_append(session_notifications(c), late->data, late->length);
        late->length = 0;
        session_push(c);
    }
    return r;
}

/* Whether this thread can put anything on the stream that was named to another one. */
static bool can_reach(const struct gather *g)
{
    return g->stream != CUDA_STREAM_PER_THREAD || pthread_equal(g->thread, pthread_self());
}

static enum kops_code flush_from_elsewhere(struct kops_client *c, struct lane *lane, uint64_t deadline,
                                           struct kops_error *e)
{
    const struct cuda_driver *d = c->ordered->driver;
    cuda_status status = d->context_push(lane->context);
    enum kops_code r;

    if (status)
        return cuda_fail(d, e, KOPS_ERR_NO_CUDA, status, "cuCtxPushCurrent");
    r = batch_flush(c, lane, lane->gather->stream, false, deadline, e);
    cuda_pop(d);
    return r;
}

enum kops_code batch_flush_all(struct kops_client *c, uint64_t deadline, struct kops_error *e)
{
    struct ordered *o = c->ordered;
    enum kops_code r = KOPS_OK;

    for (unsigned i = 0; i < TIMELINE_STREAMS && o->gathering && !r; i++) {
        struct lane *lane = &o->lanes[i];

        if (!lane->gather || !lane->gather->n_ops || !can_reach(lane->gather))
            continue;
        if (!lane_take(c, lane, deadline))
            return fail(e, KOPS_ERR_TIMEOUT, "another thread's call on a stream did not end in time");
        r = flush_from_elsewhere(c, lane, deadline, e);
        ordered_leave(c, lane);
    }
    return r;
}

enum kops_code batch_end(struct kops_client *c, struct lane *lane, cuda_queue stream, uint64_t deadline,
                         struct kops_error *e)
{
    struct gather *g = lane->gather;
    const bool gathered = g->n_ops > 0;
    enum kops_code r = KOPS_OK, waited = KOPS_OK;

    if (gathered)
        r = batch_flush(c, lane, stream, true, deadline, e);
    if (g->started && (!gathered || r)) /* an error keeps its message */
        waited = ordered_wait_for_last(c, lane, stream, r ? NULL : e);
    g->open = false;
    return r ? r : waited;
}

uint64_t batch_oldest(const struct lane *lane)
{
    return lane->gather && lane->gather->n_ops ? lane->gather->number : 0;
}

void batch_join(struct lane *lane, struct ordered_work *work)
{
    work->starts = !lane->gather->started;
    work->waits = false;
    lane->gather->started = true;
}

struct gather *gather_free(struct gather *g)
{
    if (g) {
        bytes_free(&g->tensors);
        bytes_free(&g->ops);
    }
    free(g);
    return NULL;
}
