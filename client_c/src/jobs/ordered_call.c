/* One ordered call: the page whose words it uses, its numbers, its error. */
#include "ordered.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fail.h"
#include "session/call.h"
#include "session/receive.h"

enum {
    COLLECT_AT = 8,   /* unanswered requests from which on each call reads replies, */
    COLLECT_EACH = 16 /* on the socket, where reading is a system call, one call in so many */
};

/* Notes of a call that is under way (call.notes). */
struct ordered_call {
    struct ordered_stream *stream;
    uint64_t number, last; /* of its first and last op */
    unsigned n_ops;
    const char *name; /* NULL: none is known */
    bool gathered;    /* several ops, with: */
    unsigned char names[ORDERED_MAX_OPS];
    uint16_t after[ORDERED_MAX_OPS];
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

static void note_failure(struct kops_client *c, const struct ordered_call *call, const struct kops_error *error)
{
    struct kops_error *f = &c->ordered->failed;
    uint64_t number = call->number;
    const char *name = call->name;
    int64_t index = 0;

    if (call->gathered) {
        if (!kops_error_number(error, "op_index", &index) || index < 0 || index >= call->n_ops)
            index = 0;
        number += call->after[index];
        name = names_at(c, call->names[index]);
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

/* The reply came, or never will. */
static void ended(void *owner, struct call *sent, const struct kops_error *error)
{
    struct kops_client *c = owner;
    struct ordered *o = c->ordered;
    const struct ordered_call *call = sent->notes;

    if (!o)
        return;
    call->stream->outstanding--;
    o->outstanding--;
    call->stream->ended = call->last;
    if (error && (!o->failed.code || call->number < o->failed_number)) {
        o->failed_number = call->number;
        note_failure(c, call, error);
    }
}

void ordered_collect(struct kops_client *c)
{
    if (c->calls.inflight >= COLLECT_AT && c->t.ring.memory)
        session_drain(c);
    else if (c->calls.inflight * 2 >= c->max_inflight && c->calls.inflight % COLLECT_EACH == 0)
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
        session_call(c, wire_pack_plain, "timelines", -1, wire_decode_timelines, &made, deadline, SESSION_ATTEMPTS, e);

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
        if (deadline_passed(deadline))
            return fail(e, KOPS_ERR_TIMEOUT, "the page of timelines was not there in time");
        return KOPS_OK;
    }
    o->making = true;
    r = make_timeline(c, deadline, e);
    o->making = false;
    client_changed(c);
    return r;
}

/* ---- one call ---- */

enum kops_code ordered_assign(const struct ordered_work *work, struct call *call, struct kops_error *e)
{
    const uint64_t next = work->stream->value + 1, ready = work->starts ? next : 0;

    if (!call->notes)
        call->notes = calloc(1, sizeof(struct ordered_call));
    if (!call->notes)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for an ordered call");
    if (work->raw) {
        work->raw->stream = work->stream->index;
        work->raw->ready = ready;
        work->raw->done = next;
    } else {
        work->how->stream = work->stream->index;
        work->how->ready = ready;
        work->how->done = next;
    }
    return KOPS_OK;
}

static cuda_status put_on_stream(const struct cuda_driver *d, cuda_queue cuda_stream, struct cuda_memory_op *ops,
                                 unsigned n)
{
    if (d->stream_batch)
        return n ? d->stream_batch(cuda_stream, n, ops, 0) : 0;
    for (unsigned i = 0; i < n; i++) {
        cuda_status status = ops[i].operation == CUDA_OP_WRITE_64
                                 ? d->stream_write64(cuda_stream, ops[i].address, ops[i].value, ops[i].flags)
                                 : d->stream_wait64(cuda_stream, ops[i].address, ops[i].value, ops[i].flags);

        if (status)
            return status;
    }
    return 0;
}

static enum kops_code find_base(struct kops_client *c, struct ordered_stream *stream, struct kops_error *e)
{
    const struct timeline *t = c->ordered->timeline;
    cuda_status status;

    if (stream->generation == t->generation)
        return KOPS_OK;
    status = t->driver->host_device_pointer(&stream->base, (void *)t->words, 0);
    if (status)
        return cuda_fail(t->driver, e, KOPS_ERR_DEVICE_ERROR, status, "cuMemHostGetDevicePointer");
    stream->generation = t->generation;
    return KOPS_OK;
}

static enum kops_code put_words(struct kops_client *c, struct ordered_stream *stream, cuda_queue cuda_stream,
                                uint64_t ready, uint64_t wait, struct kops_error *e)
{
    struct cuda_memory_op ops[2];
    unsigned n = 0;
    cuda_status status;
    enum kops_code r = find_base(c, stream, e);

    if (r)
        return r;
    if (ready)
        ops[n++] = (struct cuda_memory_op){.operation = CUDA_OP_WRITE_64,
                                           .address = stream->base + timeline_ready_offset(stream->index),
                                           .value = ready};
    if (wait)
        ops[n++] = (struct cuda_memory_op){.operation = CUDA_OP_WAIT_64,
                                           .address = stream->base + timeline_done_offset(stream->index),
                                           .value = wait,
                                           .flags = CUDA_WAIT_GEQ};
    status = put_on_stream(c->ordered->driver, cuda_stream, ops, n);
    if (status >= CUDA_ERROR_CAPTURE_FIRST && status <= CUDA_ERROR_CAPTURE_LAST)
        return cuda_fail(c->ordered->driver, e, KOPS_ERR_CAPTURING, status, "the CUDA stream is being captured");
    if (status)
        return cuda_fail(c->ordered->driver, e, KOPS_ERR_DEVICE_ERROR, status, "putting an ordered call on the stream");
    return KOPS_OK;
}

static void note(const struct ordered_work *work, struct ordered_call *call)
{
    call->stream = work->stream;
    call->number = work->number;
    call->last = work->last;
    call->n_ops = work->n_ops;
    call->name = work->name;
    call->gathered = work->names != NULL;
    if (work->names) {
        memcpy(call->names, work->names, work->n_ops);
        memcpy(call->after, work->after, work->n_ops * sizeof(work->after[0]));
    }
}

enum kops_code ordered_commit(struct kops_client *c, struct ordered_work *work, struct call *call, struct kops_error *e)
{
    struct ordered *o = c->ordered;
    struct ordered_stream *stream = work->stream;
    const uint64_t next = stream->value + 1;
    enum kops_code r = put_words(c, stream, work->cuda_stream, work->starts ? next : 0, work->waits ? next : 0, e);

    /* Even where it failed, the first half may be on the stream. */
    stream->value = next;
    if (r)
        return r;
    if (!work->number) {
        work->number = work->last = o->number + 1;
        o->number++;
    }
    if (!stream->outstanding)
        stream->first = work->number;
    stream->outstanding++;
    o->outstanding++;
    note(work, call->notes);
    call->ended = ended;
    call->owner = c;
    return KOPS_OK;
}

enum kops_code ordered_wait_for_last(struct kops_client *c, struct ordered_stream *stream, cuda_queue cuda_stream,
                                     struct kops_error *e)
{
    if (!ordered_current(c) || stream->generation != c->ordered->timeline->generation)
        return KOPS_OK; /* of a connection that is over: nothing runs any more */
    return put_words(c, stream, cuda_stream, 0, stream->value, e);
}
