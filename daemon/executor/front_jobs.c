/* Jobs on their way to an executor and back. Thread: loop. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "executor/front.h"
#include "util/log.h"

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

static void ring_doorbell(struct executor *x)
{
    const uint64_t one = 1;

    /* The record's word was stored before; the executor stores its own and then looks at the ring again. */
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&x->region->executor_sleeps, memory_order_relaxed) &&
        atomic_exchange(&x->region->executor_sleeps, 0))
        while (write(x->doorbell, &one, sizeof(one)) < 0 && errno == EINTR)
            ;
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

static void drop_overflow(struct executor *x)
{
    list_for_each_safe (node, after, &x->overflow) {
        list_remove(node);
        free(list_entry(node, struct overflow, link));
    }
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
    list_init(&s->blocked_link);
    s->unsent = &s->jobs;
    list_append(&d->executor->streams, &s->link);
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
    list_remove(&s->link);
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
        return operands_of(job) * (uint32_t)sizeof(uint32_t);
    for (unsigned i = 0; i < job->n_steps; i++)
        bytes += step_packed_bytes(&job->steps[i]);
    return bytes;
}

static void write_steps(const struct front_device *d, const struct backend_job *job, bool replay, unsigned char *at)
{
    uint32_t handles[STEP_MAX_OPERANDS];

    for (unsigned i = 0; i < job->n_steps; i++) {
        const struct step *step = &job->steps[i];
        const unsigned n = step_operands(step);

        for (unsigned o = 0; o < n; o++)
            handles[o] = front_handle(&d->base, step->operands[o].memory);
        if (replay) {
            memcpy(at, handles, n * sizeof(handles[0]));
            at += n * sizeof(handles[0]);
        } else {
            at += step_pack(step, handles, at);
        }
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

static void send_blocked(struct executor *x)
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

/* ---- records from the executor ---- */

static void break_off(struct executor *x, const char *what)
{
    struct error e;

    error_set(&e, ERROR_DEVICE_LOST, "the executor of the GPU answered nonsense (%s)", what);
    front_kill(x, &e);
}

/* The executor's job of that slot; NULL: nonsense. */
static struct front_job *find_job(struct executor *x, uint32_t slot, uint32_t serial)
{
    struct front_job *own = slot && slot <= EXECUTOR_JOBS_MAX ? &x->jobs[slot] : NULL;

    if (own && own->job && own->serial == serial)
        return own;
    break_off(x, "no such job");
    return NULL;
}

static void take_samples(struct executor *x, const unsigned char *from, uint32_t size)
{
    struct record_samples record;
    struct front_job *own;
    struct backend_job *job;

    if (size < sizeof(record)) {
        break_off(x, "samples");
        return;
    }
    memcpy(&record, from, sizeof(record));
    own = find_job(x, record.slot, record.serial);
    if (!own)
        return;
    job = own->job;
    if (record.n > RECORD_SAMPLES_MAX || size < sizeof(record) + record.n * sizeof(double) ||
        record.n > job->repeat - job->n_samples) {
        break_off(x, "samples");
        return;
    }
    memcpy(job->samples + job->n_samples, from + sizeof(record), record.n * sizeof(double));
    job->n_samples += record.n;
}

/* Takes the error and the variants behind the record. */
static bool take_rest(struct backend_job *job, const struct record_done *record, const unsigned char *from,
                      uint32_t size)
{
    const uint32_t error_bytes = record->failed ? sizeof(job->error) : 0;

    if (record->n_variants > job->n_steps || size < error_bytes + (uint64_t)record->n_variants * STEP_VARIANT_BYTES)
        return false;
    if (record->failed) {
        memcpy(&job->error, from, sizeof(job->error));
        error_accept(&job->error);
    }
    for (uint32_t i = 0; i < record->n_variants; i++) {
        char name[STEP_VARIANT_BYTES];

        memcpy(name, from + error_bytes + i * (uint32_t)STEP_VARIANT_BYTES, sizeof(name));
        name[sizeof(name) - 1] = '\0';
        for (char *c = name; *c; c++)
            if (*c < ' ' || *c > '~')
                *c = '?';
        step_copy_variant(job->steps[i].variant_used, name);
    }
    return true;
}

static void end_job(struct front_job *own)
{
    struct backend_job *job = own->job;
    struct executor *x = own->stream->device->executor;

    own->job = NULL;
    job->impl = NULL;
    ids_give(&x->slots, own->slot);
    list_remove(&job->link);
    x->unfinished--;
    job->done(job);
}

static bool is_time(double us)
{
    return isnan(us) || (us >= 0 && us < 1e15);
}

static void take_done(struct executor *x, const unsigned char *from, uint32_t size)
{
    struct record_done record;
    struct backend_job *job;
    struct front_job *own;

    if (size < sizeof(record)) {
        break_off(x, "an end");
        return;
    }
    memcpy(&record, from, sizeof(record));
    own = find_job(x, record.slot, record.serial);
    if (!own)
        return;
    job = own->job;
    if (list_first(&own->stream->jobs) != &job->link || record.n_samples != job->n_samples || !is_time(record.h2d_us) ||
        !is_time(record.d2h_us) || !take_rest(job, &record, from + sizeof(record), size - (uint32_t)sizeof(record))) {
        break_off(x, "an end");
        return;
    }
    for (uint32_t i = 0; i < job->n_samples; i++)
        if (!is_time(job->samples[i]))
            job->samples[i] = 0;
    job->failed = record.failed != 0;
    job->ended = record.ended;
    job->started_ns = record.started_ns;
    job->h2d_us = record.h2d_us;
    job->d2h_us = record.d2h_us;
    end_job(own);
}

static void take_lost(struct executor *x)
{
    struct error e;

    error_set(&e, ERROR_DEVICE_LOST, "the GPU's context is broken");
    front_kill(x, &e);
}

static void take_record(struct executor *x, const unsigned char *from, uint32_t size)
{
    uint32_t kind;

    if (size < sizeof(kind)) {
        break_off(x, "a record");
        return;
    }
    memcpy(&kind, from, sizeof(kind));
    if (kind == RECORD_SAMPLES)
        take_samples(x, from, size);
    else if (kind == RECORD_DONE)
        take_done(x, from, size);
    else if (kind == RECORD_LOST)
        take_lost(x);
    else
        break_off(x, "a record");
}

/* ---- the loop's entries ---- */

/* The executor is gone: takes all jobs off their streams, each stream's in order. */
static void gather_all(struct executor *x, struct list *finished)
{
    drop_overflow(x);
    list_for_each_safe (node, after, &x->blocked) {
        list_remove(node);
    }
    list_for_each_safe (node, after, &x->streams) {
        struct front_stream *s = list_entry(node, struct front_stream, link);
        struct list *first;

        s->unsent = &s->jobs;
        while ((first = list_first(&s->jobs))) {
            list_remove(first);
            list_append(finished, first);
        }
    }
}

static void fail_all(struct executor *x)
{
    struct list finished, *first;

    list_init(&finished);
    gather_all(x, &finished);
    /* Last, because done() may submit more, or free streams. */
    while ((first = list_first(&finished))) {
        struct backend_job *job = list_entry(first, struct backend_job, link);
        struct front_job *own = job->impl;

        if (own)
            own->job = NULL;
        job->impl = NULL;
        job->failed = true;
        job->error = x->why;
        list_remove(first);
        x->unfinished--;
        job->done(job);
    }
}

/* Copies how far the oldest job of each stream is, for those who watch whether it goes on. */
static void note_progress(struct executor *x)
{
    list_for_each_safe (node, after, &x->streams) {
        const struct front_stream *s = list_entry(node, struct front_stream, link);
        struct list *first = list_first(&s->jobs);
        struct backend_job *job = first ? list_entry(first, struct backend_job, link) : NULL;
        const struct front_job *own = job ? job->impl : NULL;

        if (own)
            job->ended = atomic_load_explicit(&x->region->ended[own->slot], memory_order_relaxed);
    }
}

/* After a sleep: silences the bell. The executor writes to the bell once it has seen the daemon's word; it may do so
 * a little later than the daemon woke for another reason. */
static void silence(struct executor *x)
{
    uint64_t ignored;

    if (atomic_exchange(&x->region->daemon_sleeps, 0) || read(x->bell, &ignored, sizeof(ignored)) > 0)
        x->may_ring = false;
    note_progress(x);
    front_check(x);
}

unsigned front_poll(struct backend_device *device)
{
    enum { POLLS_A_CHECK = 4096 };
    struct executor *x = front_device(device)->executor;
    const void *record;
    uint32_t size;

    if (x->may_ring)
        silence(x);
    else if (!x->unfinished || ++x->polls % POLLS_A_CHECK == 0)
        front_check(x);
    while (!atomic_load_explicit(&x->gone, memory_order_relaxed) && (record = ring_peek(&x->in, &size))) {
        take_record(x, record, size);
        ring_next(&x->in);
    }
    if (x->in.corrupt)
        break_off(x, "the ring");
    if (!list_empty(&x->overflow) || !list_empty(&x->blocked))
        send_blocked(x);
    if (atomic_load_explicit(&x->gone, memory_order_relaxed)) {
        device->lost = true;
        fail_all(x);
    }
    return x->unfinished;
}

void front_arm(struct backend_device *device)
{
    struct executor *x = front_device(device)->executor;

    x->may_ring = true;
    atomic_store(&x->region->wants_room, !list_empty(&x->overflow) || !list_empty(&x->blocked));
    atomic_store(&x->region->daemon_sleeps, 1);
    if (ring_has_record(&x->in) || atomic_load(&x->gone))
        x->host.wake(x->host.context);
}
