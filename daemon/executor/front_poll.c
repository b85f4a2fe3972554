/* Checks and takes an executor's records; has the backend's functions poll() and arm(). Thread: loop. */
#include <math.h>
#include <string.h>

#include "executor/front.h"
#include "util/clock.h"

/* ---- records from the executor ---- */

static void break_off(struct executor *x, const char *what)
{
    struct error e;

    error_set(&e, ERROR_DEVICE_LOST, "the executor of the GPU answered nonsense (%s)", what);
    front_kill(x, &e);
}

/* Copies a record about a job, which begins with struct record_job, and finds the job; NULL: nonsense. */
static struct front_job *read_record(struct executor *x, const unsigned char *from, uint32_t size, void *record,
                                     uint32_t record_size)
{
    struct record_job head;
    struct front_job *own = NULL;

    if (size >= record_size) {
        memcpy(record, from, record_size);
        memcpy(&head, record, sizeof(head));
        own = head.slot && head.slot <= EXECUTOR_JOBS_MAX ? &x->jobs[head.slot] : NULL;
        own = own && own->job && own->serial == head.serial ? own : NULL;
    }
    if (!own)
        break_off(x, "no such job");
    return own;
}

static void take_samples(struct executor *x, const unsigned char *from, uint32_t size)
{
    struct record_samples record;
    struct front_job *own = read_record(x, from, size, &record, sizeof(record));
    struct backend_job *job;

    if (!own)
        return;
    job = own->job;
    if (!record.n || record.n > RECORD_SAMPLES_MAX || size < sizeof(record) + record.n * sizeof(double) ||
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
    if (list_empty(&own->stream->jobs))
        list_remove(&own->stream->link);
    x->unfinished--;
    job->done(job);
}

static bool is_time(double us)
{
    return us >= 0 && us < 1e15; /* also false for a NaN */
}

static bool is_copy_time(double us)
{
    return isnan(us) || is_time(us); /* a NaN: there was none */
}

/* The job cannot have started before it was submitted, nor later than now. */
static uint64_t started_of(const struct front_job *own, uint64_t said_ns)
{
    const uint64_t now_ns = clock_now_ns();

    if (!said_ns)
        return 0;
    return said_ns < own->submitted_ns ? own->submitted_ns : said_ns > now_ns ? now_ns : said_ns;
}

static void take_done(struct executor *x, const unsigned char *from, uint32_t size)
{
    struct record_done record;
    struct front_job *own = read_record(x, from, size, &record, sizeof(record));
    struct backend_job *job;

    if (!own)
        return;
    job = own->job;
    if (list_first(&own->stream->jobs) != &job->link || record.n_samples != job->n_samples ||
        !is_copy_time(record.h2d_us) || !is_copy_time(record.d2h_us) ||
        !take_rest(job, &record, from + sizeof(record), size - (uint32_t)sizeof(record))) {
        break_off(x, "an end");
        return;
    }
    for (uint32_t i = 0; i < job->n_samples; i++)
        if (!is_time(job->samples[i]))
            job->samples[i] = 0;
    job->failed = record.failed != 0;
    job->ended = record.ended;
    job->started_ns = started_of(own, record.started_ns);
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
    struct list *node, *first;

    front_drop_rest(x);
    while ((node = list_pop(&x->busy))) {
        struct front_stream *s = list_entry(node, struct front_stream, link);

        s->unsent = &s->jobs;
        while ((first = list_pop(&s->jobs)))
            list_append(finished, first);
    }
}

static void fail_all(struct executor *x)
{
    struct list finished, *first;

    list_init(&finished);
    gather_all(x, &finished);
    /* Last, because done() may submit more, or free streams. */
    while ((first = list_pop(&finished))) {
        struct backend_job *job = list_entry(first, struct backend_job, link);
        struct front_job *own = job->impl;

        if (own)
            own->job = NULL;
        job->impl = NULL;
        job->failed = true;
        job->error = x->why;
        x->unfinished--;
        job->done(job);
    }
}

/* Copies how far the oldest job of each stream is, for those who watch whether it goes on. */
static void note_progress(struct executor *x)
{
    list_for_each_safe (node, after, &x->busy) {
        const struct front_stream *s = list_entry(node, struct front_stream, link);
        struct list *first = list_first(&s->jobs);
        struct backend_job *job = first ? list_entry(first, struct backend_job, link) : NULL;
        const struct front_job *own = job ? job->impl : NULL;
        const unsigned ended = own ? atomic_load_explicit(&x->region->ended[own->slot], memory_order_relaxed) : 0;

        /* It only grows, up to the executions that there are: else a job that hangs could look alive for ever. */
        if (own && ended > job->ended && ended <= job->warmup + job->repeat)
            job->ended = ended;
    }
}

/* Takes records, as many as a ring holds at most: an executor that writes as fast as this reads gets no more of the
 * loop's time. */
static void take_records(struct executor *x)
{
    const uint64_t begin = x->in.position;
    const void *record;
    uint32_t size;

    while (!atomic_load_explicit(&x->gone, memory_order_relaxed) && x->in.position - begin < RING_BYTES &&
           (record = ring_peek(&x->in, &size))) {
        take_record(x, record, size);
        ring_next(&x->in);
        x->stretched = 0;
    }
    if (x->in.corrupt)
        break_off(x, "the ring");
}

/* Looks after a sleep, and now and then, whether the executor is there and how far its jobs are. front_check() also
 * silences the bell. */
static void look_after(struct executor *x)
{
    if (x->slept)
        atomic_store(&x->region->daemon_sleeps, 0);
    x->slept = false;
    note_progress(x);
    front_check(x);
}

unsigned front_poll(struct backend_device *device)
{
    enum { POLLS_A_LOOK = 4096, POLLS_STRETCHED = 1000 };
    struct executor *x = front_device(device)->executor;

    if (x->slept || !x->unfinished || ++x->polls % POLLS_A_LOOK == 0)
        look_after(x);
    take_records(x);
    if (x->unfinished && atomic_load_explicit(&x->region->issuing, memory_order_relaxed) &&
        x->stretched++ < POLLS_STRETCHED)
        device->active = true;
    if (front_has_rest(x))
        front_send_rest(x);
    if (atomic_load_explicit(&x->gone, memory_order_relaxed)) {
        device->lost = true;
        fail_all(x);
    }
    return x->unfinished;
}

void front_arm(struct backend_device *device)
{
    struct executor *x = front_device(device)->executor;

    x->slept = true;
    atomic_store(&x->region->wants_room, front_has_rest(x));
    atomic_store(&x->region->daemon_sleeps, 1);
    /* The executor stores its words before it looks at these. */
    atomic_thread_fence(memory_order_seq_cst);
    if (ring_has_record(&x->in) || (front_has_rest(x) && atomic_load(&x->out.words->read) != x->out.other) ||
        atomic_load(&x->gone) || atomic_load(&x->broken))
        x->host.wake(x->host.context);
}
