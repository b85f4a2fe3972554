/* Streams and jobs on their way to an executor. Thread: loop. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "executor/bell.h"
#include "executor/front.h"
#include "util/clock.h"

struct overflow {
    struct list link;
    uint32_t size;
    unsigned char bytes[]; /* a record */
};

struct front_program {
    uint32_t number;
};

static struct front_stream *front_stream(struct backend_stream *stream)
{
    return (struct front_stream *)(void *)stream;
}

/* ---- records to the executor ---- */

static void ring_doorbell(const struct executor *x)
{
    /* The record's word was stored before; the executor stores its own and then looks at the ring again. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&x->region->executor_sleeps, memory_order_relaxed) &&
        atomic_exchange(&x->region->executor_sleeps, 0))
        bell_ring(x->bell);
}

static bool send_now(struct executor *x, const void *record, uint32_t size)
{
    void *at = ring_reserve(&x->out, size);

    if (!at)
        return false;
    memcpy(at, record, size);
    ring_publish(&x->out);
    ring_doorbell(x);
    return true;
}

/* Sends a small record now or, when the ring is full, before everything that follows. */
static void send_record(struct executor *x, const void *record, uint32_t size)
{
    struct overflow *later;
    struct error e;

    if (atomic_load_explicit(&x->gone, memory_order_relaxed) || (list_empty(&x->overflow) && send_now(x, record, size)))
        return;
    later = malloc(sizeof(*later) + size);
    if (!later) { /* without it both sides would disagree */
        error_set(&e, ERROR_DEVICE_LOST, "no memory for a record to the executor of the GPU");
        front_kill(x, &e);
        return;
    }
    later->size = size;
    memcpy(later->bytes, record, size);
    list_append(&x->overflow, &later->link);
}

static void send_number(struct executor *x, enum record_kind kind, uint32_t number, uint32_t serial)
{
    const struct record_number record = {.kind = kind, .number = number, .serial = serial};

    send_record(x, &record, sizeof(record));
}

/* Returns false while records wait. */
static bool send_overflow(struct executor *x)
{
    while (!list_empty(&x->overflow)) {
        struct overflow *next = list_entry(list_first(&x->overflow), struct overflow, link);

        if (!send_now(x, next->bytes, next->size))
            return false;
        list_remove(&next->link);
        free(next);
    }
    return true;
}

/* ---- streams ---- */

int front_stream_new(struct backend_device *device, enum backend_priority priority, struct backend_stream **ret_stream,
                     struct error *e)
{
    struct front_device *d = front_device(device);
    struct front_stream *s = calloc(1, sizeof(*s));
    struct record_stream record = {.kind = RECORD_STREAM_NEW, .device = d->number, .priority = priority};

    if (!s)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a stream");
    s->number = record.stream = ids_take(&d->executor->stream_ids);
    if (!s->number) {
        free(s);
        return error_set(e, ERROR_OUT_OF_MEMORY, "an executor has as many streams as it can");
    }
    s->device = d;
    list_init(&s->jobs);
    list_init(&s->link);
    list_init(&s->blocked_link);
    s->unsent = &s->jobs;
    send_record(d->executor, &record, sizeof(record));
    *ret_stream = (struct backend_stream *)(void *)s;
    return 0;
}

void front_stream_free(struct backend_stream *stream)
{
    struct front_stream *s = front_stream(stream);
    struct executor *x = s->device->executor;
    const struct record_stream record = {.kind = RECORD_STREAM_FREE, .stream = s->number};

    send_record(x, &record, sizeof(record));
    ids_give(&x->stream_ids, s->number);
    free(s);
}

/* ---- submission ---- */

static uint32_t operands_of(const struct backend_job *job)
{
    uint32_t n = 0;

    for (unsigned i = 0; i < job->n_steps; i++)
        n += step_operands(&job->steps[i]);
    return n;
}

static uint32_t behind_record(const struct backend_job *job, bool replay)
{
    uint32_t bytes = 0;

    if (replay)
        return operands_of(job) * (uint32_t)sizeof(struct step_operand);
    for (unsigned i = 0; i < job->n_steps; i++)
        bytes += step_packed_bytes(&job->steps[i]);
    return bytes;
}

static unsigned char *write_operands(const struct step *step, const uint32_t *handles, unsigned char *at)
{
    for (unsigned o = 0; o < step_operands(step); o++) {
        struct step_operand operand = step->operands[o];

        operand.memory = handles[o];
        memcpy(at, &operand, sizeof(operand));
        at += sizeof(operand);
    }
    return at;
}

static void write_steps(const struct front_device *d, const struct backend_job *job, bool replay, unsigned char *at)
{
    uint32_t handles[STEP_MAX_OPERANDS];

    for (unsigned i = 0; i < job->n_steps; i++) {
        const struct step *step = &job->steps[i];

        for (unsigned o = 0; o < step_operands(step); o++)
            handles[o] = front_handle(&d->base, step->operands[o].memory);
        at = replay ? write_operands(step, handles, at) : at + step_pack(step, handles, at);
    }
}

/* The program's number there; *ret_replay: the executor has its steps. 0: the job is no program, or has no number left
 * and runs as a sequence. */
static uint32_t program_of(struct executor *x, const struct backend_job *job, bool *ret_replay)
{
    struct front_program *p;

    *ret_replay = false;
    if (!job->program)
        return 0;
    p = (struct front_program *)(void *)*job->program;
    *ret_replay = p != NULL;
    if (p)
        return p->number;
    p = calloc(1, sizeof(*p));
    if (p)
        p->number = ids_take(&x->program_ids);
    if (!p || !p->number) {
        free(p);
        return 0;
    }
    *job->program = (struct backend_program *)(void *)p;
    return p->number;
}

static void fill_record(const struct front_stream *s, const struct backend_job *job, struct record_submit *record)
{
    *record = (struct record_submit){.kind = RECORD_SUBMIT,
                                     .stream = s->number,
                                     .n_steps = job->n_steps,
                                     .warmup = job->warmup,
                                     .repeat = job->repeat,
                                     .timing = job->timing,
                                     .owner = job->owner};
    if (job->signal.page) {
        const struct front_attachment *page = job->signal.page->attached[s->device->base.index];

        record->signal_page = page ? page->handle : 0;
        record->signal_offset = job->signal.offset;
        record->signal_value = job->signal.value;
    }
}

/* Gives the job to the executor. False: there is no room now. */
static bool send_job(struct front_stream *s, struct backend_job *job)
{
    struct executor *x = s->device->executor;
    const uint32_t slot = ids_take(&x->slots);
    struct record_submit record;
    struct front_job *own;
    unsigned char *at;
    uint32_t program;
    bool replay;

    if (!slot)
        return false;
    program = program_of(x, job, &replay);
    at = ring_reserve(&x->out, (uint32_t)sizeof(record) + behind_record(job, replay));
    if (!at) {
        ids_give(&x->slots, slot);
        if (program && !replay) { /* the executor has not heard of it */
            ids_give(&x->program_ids, program);
            free(*job->program);
            *job->program = NULL;
        }
        return false;
    }
    own = &x->jobs[slot];
    own->job = job;
    own->stream = s;
    own->slot = slot;
    own->serial++;
    own->submitted_ns = clock_now_ns();
    job->impl = own;
    fill_record(s, job, &record);
    record.slot = slot;
    record.serial = own->serial;
    record.program = program;
    record.replay = replay;
    memcpy(at, &record, sizeof(record));
    write_steps(s->device, job, replay, at + sizeof(record));
    atomic_store_explicit(&x->region->ended[slot], 0, memory_order_relaxed);
    ring_publish(&x->out);
    ring_doorbell(x);
    if (atomic_load_explicit(&job->cancel, memory_order_relaxed))
        send_number(x, RECORD_CANCEL, slot, own->serial);
    return true;
}

/* Sends the stream's jobs in order, as many as there is room for. */
static bool send_jobs(struct front_stream *s)
{
    struct executor *x = s->device->executor;

    for (; s->unsent != &s->jobs; s->unsent = s->unsent->next)
        if (!list_empty(&x->overflow) || !send_job(s, list_entry(s->unsent, struct backend_job, link)))
            return false;
    return true;
}

void front_send_rest(struct executor *x)
{
    if (!send_overflow(x))
        return;
    while (!list_empty(&x->blocked)) {
        struct front_stream *s = list_entry(list_first(&x->blocked), struct front_stream, blocked_link);

        if (!send_jobs(s))
            return;
        list_remove(&s->blocked_link);
    }
}

void front_drop_rest(struct executor *x)
{
    struct list *first;

    while ((first = list_pop(&x->overflow)))
        free(list_entry(first, struct overflow, link));
    while (list_pop(&x->blocked))
        ;
}

void front_submit(struct backend_stream *stream, struct backend_job *job)
{
    struct front_stream *s = front_stream(stream);
    struct executor *x = s->device->executor;

    job->failed = false;
    job->started_ns = 0;
    job->ended = 0;
    job->n_samples = 0;
    job->h2d_us = job->d2h_us = NAN;
    job->impl = NULL;
    if (list_empty(&s->jobs))
        list_append(&x->busy, &s->link);
    list_append(&s->jobs, &job->link);
    if (s->unsent == &s->jobs)
        s->unsent = &job->link;
    x->unfinished++;
    if (atomic_load_explicit(&x->gone, memory_order_relaxed) || !list_empty(&s->blocked_link))
        return; /* poll() goes on */
    if (!list_empty(&x->blocked) || !send_jobs(s))
        list_append(&x->blocked, &s->blocked_link);
}

void front_cancel(struct backend_job *job)
{
    const struct front_job *own = job->impl;

    if (own)
        send_number(own->stream->device->executor, RECORD_CANCEL, own->slot, own->serial);
}

void front_program_free(struct backend_device *device, struct backend_program *program)
{
    struct front_program *p = (struct front_program *)(void *)program;
    struct executor *x = front_device(device)->executor;

    if (!p)
        return;
    send_number(x, RECORD_PROGRAM_FREE, p->number, 0);
    ids_give(&x->program_ids, p->number);
    free(p);
}
