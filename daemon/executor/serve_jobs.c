/* Jobs in the executor: from the daemon's records to the backend, and back. Thread: the loop. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/memory_ids.h"
#include "executor/serve.h"
#include "util/log.h"

static void advance(struct serving *p, struct served_stream *s);

int jobs_init(struct serving *p, struct error *e)
{
    list_init(&p->unreported);
    p->streams = calloc(EXECUTOR_STREAMS_MAX + 1, sizeof(*p->streams));
    p->programs = calloc(EXECUTOR_PROGRAMS_MAX + 1, sizeof(*p->programs));
    p->jobs = calloc(EXECUTOR_JOBS_MAX + 1, sizeof(*p->jobs));
    return p->streams && p->programs && p->jobs ? 0 : error_set(e, ERROR_OUT_OF_MEMORY, "no memory for jobs");
}

/* The daemon and this process are one program: a record that makes no sense is a fault that nothing can repair. */
static void give_up(const char *what)
{
    log_error("executor", "why=\"the daemon's record makes no sense: %s\"", what);
    _exit(1);
}

/* ---- reports ---- */

static void write_bell(const struct serving *p)
{
    const uint64_t one = 1;

    while (write(p->bell, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

static void ring_bell(const struct serving *p)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&p->region->daemon_sleeps, memory_order_relaxed) &&
        atomic_exchange(&p->region->daemon_sleeps, 0))
        write_bell(p);
}

static bool report_samples(struct serving *p, struct served_job *job)
{
    while (job->reported < job->base.n_samples) {
        uint32_t n = job->base.n_samples - job->reported;
        struct record_samples *record;

        if (n > RECORD_SAMPLES_MAX)
            n = RECORD_SAMPLES_MAX;
        record = ring_reserve(&p->out, (uint32_t)(sizeof(*record) + n * sizeof(double)));
        if (!record)
            return false;
        *record = (struct record_samples){.kind = RECORD_SAMPLES, .slot = job->slot, .serial = job->serial, .n = n};
        memcpy(record->us, job->base.samples + job->reported, n * sizeof(double));
        ring_publish(&p->out);
        job->reported += n;
    }
    return true;
}

static bool report_end(struct serving *p, const struct served_job *job)
{
    const struct backend_job *base = &job->base;
    const uint32_t error_bytes = base->failed ? sizeof(base->error) : 0;
    struct record_done *record =
        ring_reserve(&p->out, (uint32_t)sizeof(*record) + error_bytes + base->n_steps * (uint32_t)STEP_VARIANT_BYTES);
    unsigned char *at;

    if (!record)
        return false;
    *record = (struct record_done){.kind = RECORD_DONE,
                                   .slot = job->slot,
                                   .serial = job->serial,
                                   .failed = base->failed,
                                   .ended = base->ended,
                                   .n_samples = base->n_samples,
                                   .n_variants = base->n_steps,
                                   .started_ns = base->started_ns,
                                   .h2d_us = base->h2d_us,
                                   .d2h_us = base->d2h_us};
    at = (unsigned char *)(record + 1);
    memcpy(at, &base->error, error_bytes);
    at += error_bytes;
    for (unsigned i = 0; i < base->n_steps; i++, at += STEP_VARIANT_BYTES)
        memcpy(at, base->steps[i].variant_used, STEP_VARIANT_BYTES);
    ring_publish(&p->out);
    return true;
}

static void free_job(struct served_job *job)
{
    if (job->owns_steps)
        free(job->steps);
    if (job->samples != &job->sample)
        free(job->samples);
    job->steps = NULL;
    job->samples = NULL;
    job->owns_steps = false;
    job->state = SERVED_FREE;
}

/* Tells the daemon. False: there is no room now. */
static bool report(struct serving *p, struct served_job *job)
{
    if (!report_samples(p, job))
        return false;
    /* Before the record: behind it the slot may have its next job. */
    list_remove(&job->stream_link);
    if (!report_end(p, job))
        return false;
    free_job(job);
    ring_bell(p);
    return true;
}

static void end(struct serving *p, struct served_job *job)
{
    job->state = SERVED_ENDED;
    if (!list_empty(&p->unreported) || !report(p, job))
        list_append(&p->unreported, &job->report_link);
}

static bool report_rest(struct serving *p)
{
    bool any = false;

    while (!list_empty(&p->unreported)) {
        struct served_job *job = list_entry(list_first(&p->unreported), struct served_job, report_link);

        list_remove(&job->report_link);
        if (!report(p, job)) {
            job->report_link.prev = &p->unreported; /* back to the front */
            job->report_link.next = p->unreported.next;
            p->unreported.next->prev = &job->report_link;
            p->unreported.next = &job->report_link;
            break;
        }
        any = true;
    }
    return any;
}

/* ---- jobs ---- */

static void on_done(struct backend_job *base)
{
    struct served_job *job = (struct served_job *)(void *)base;
    struct served_stream *s = job->stream;
    struct serving *p = s->serving;

    s->submitted--;
    p->unfinished--;
    end(p, job);
    advance(p, s);
}

static void submit(struct serving *p, struct served_stream *s, struct served_job *job)
{
    s->next = s->next->next;
    s->submitted++;
    p->unfinished++;
    job->state = SERVED_SUBMITTED;
    p->backend->submit(s->local, &job->base);
}

/* Ends the stream's next job without the backend. */
static void refuse(struct serving *p, struct served_stream *s, struct served_job *job, const struct error *why)
{
    s->next = s->next->next;
    job->base.failed = true;
    if (why)
        job->base.error = *why;
    end(p, job);
}

/* Lets the stream's jobs go as far as they can: a job that needs preparing waits for those before it, and those behind
 * it wait for it. */
static void advance(struct serving *p, struct served_stream *s)
{
    const struct backend *backend = p->backend;

    while (s->next != &s->jobs) {
        struct served_job *job = list_entry(s->next, struct served_job, stream_link);

        if (s->error.code != ERROR_NONE) {
            refuse(p, s, job, &s->error);
            continue;
        }
        if (job->state == SERVED_PREPARING)
            return;
        if (job->state == SERVED_PREPARED && job->base.failed) {
            refuse(p, s, job, NULL);
            continue;
        }
        if (job->state == SERVED_WAITING && backend->needs_prepare && backend->needs_prepare(s->device, &job->base)) {
            if (s->submitted)
                return;
            job->state = SERVED_PREPARING;
            workers_prepare(&p->workers, job);
            return;
        }
        submit(p, s, job);
    }
}

static bool take_prepared(struct serving *p)
{
    struct list done, *first;

    if (!atomic_load_explicit(&p->work_done, memory_order_relaxed))
        return false;
    workers_take(&p->workers, &done);
    while ((first = list_first(&done))) {
        struct served_job *job = list_entry(first, struct served_job, work_link);

        list_remove(first);
        job->state = SERVED_PREPARED;
        advance(p, job->stream);
    }
    return true;
}

/* ---- the daemon's records ---- */

static struct served_job *new_job(struct serving *p, const struct record_submit *record)
{
    struct served_job *job;

    if (!record->slot || record->slot > EXECUTOR_JOBS_MAX)
        give_up("slot");
    job = p->jobs[record->slot];
    if (!job) {
        job = p->jobs[record->slot] = calloc(1, sizeof(*job));
        if (!job)
            give_up("no memory for it");
        list_init(&job->stream_link);
        list_init(&job->work_link);
        list_init(&job->report_link);
    }
    if (job->state != SERVED_FREE || record->stream > EXECUTOR_STREAMS_MAX || !p->streams[record->stream])
        give_up("job");
    job->stream = p->streams[record->stream];
    job->slot = record->slot;
    job->serial = record->serial;
    job->state = SERVED_WAITING;
    job->reported = 0;
    job->samples = &job->sample;
    if (record->repeat > 1)
        job->samples = malloc(record->repeat * sizeof(double));
    if (!job->samples)
        give_up("no memory for its samples");
    return job;
}

static void unpack(struct step *steps, uint32_t n, const unsigned char *from, uint32_t size)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t bytes = step_unpack(from, size, &steps[i]);

        if (!bytes)
            give_up("steps");
        from += bytes;
        size -= bytes;
    }
}

/* A program's steps keep all but their memories, which may have been closed and opened again since. */
static void rebind(struct served_program *program, const unsigned char *from, uint32_t size)
{
    for (uint32_t i = 0; i < program->n_steps; i++)
        for (unsigned o = 0; o < step_operands(&program->steps[i]); o++) {
            if (size < sizeof(uint32_t))
                give_up("operands");
            memcpy(&program->steps[i].operands[o].memory, from, sizeof(uint32_t));
            from += sizeof(uint32_t);
            size -= (uint32_t)sizeof(uint32_t);
        }
}

static struct step *new_steps(uint32_t n)
{
    struct step *steps = malloc(n * sizeof(*steps));

    if (!steps)
        give_up("no memory for its steps");
    return steps;
}

static void take_steps(struct serving *p, struct served_job *job, const struct record_submit *record,
                       const unsigned char *from, uint32_t size)
{
    struct served_program *program = NULL;

    if (record->program > EXECUTOR_PROGRAMS_MAX || !record->n_steps)
        give_up("program");
    if (record->replay) {
        program = p->programs[record->program];
        if (!program || program->n_steps != record->n_steps)
            give_up("program");
        rebind(program, from, size);
        job->steps = program->steps;
    } else {
        job->owns_steps = !record->program && record->n_steps > 1;
        job->steps = record->program || record->n_steps > 1 ? new_steps(record->n_steps) : &job->first;
        unpack(job->steps, record->n_steps, from, size);
    }
    if (record->program && !record->replay) {
        program = p->programs[record->program] = calloc(1, sizeof(*program));
        if (!program)
            give_up("no memory for a program");
        program->steps = job->steps;
        program->n_steps = record->n_steps;
        program->device = job->stream->device;
    }
    job->base.program = program ? &program->local : NULL;
}

static void take_submit(struct serving *p, const unsigned char *from, uint32_t size)
{
    struct record_submit record;
    struct served_job *job;
    struct served_stream *s;

    memcpy(&record, from, sizeof(record));
    job = new_job(p, &record);
    s = job->stream;
    take_steps(p, job, &record, from + sizeof(record), size - (uint32_t)sizeof(record));
    job->base.steps = job->steps;
    job->base.n_steps = record.n_steps;
    job->base.warmup = record.warmup;
    job->base.repeat = record.repeat;
    job->base.timing = record.timing;
    job->base.owner = record.owner;
    job->base.samples = job->samples;
    job->base.signal = (struct backend_signal){.offset = record.signal_offset, .value = record.signal_value};
    if (record.signal_page)
        job->base.signal.page = memory_by_id(record.signal_page);
    job->base.done = on_done;
    job->base.failed = false;
    job->base.ended = 0;
    job->base.n_samples = 0;
    job->base.started_ns = 0;
    job->base.h2d_us = job->base.d2h_us = NAN;
    job->base.impl = NULL;
    atomic_store_explicit(&job->base.cancel, false, memory_order_relaxed);
    list_append(&s->jobs, &job->stream_link);
    if (s->next == &s->jobs)
        s->next = &job->stream_link;
    if (s->next == &job->stream_link)
        advance(p, s);
}

static void take_stream_new(struct serving *p, const unsigned char *from)
{
    struct record_stream record;
    struct served_stream *s = calloc(1, sizeof(*s));

    memcpy(&record, from, sizeof(record));
    if (!s || !record.stream || record.stream > EXECUTOR_STREAMS_MAX || record.device >= p->n_devices)
        give_up("stream");
    s->serving = p;
    s->device = p->devices[record.device];
    list_init(&s->jobs);
    s->next = &s->jobs;
    if (p->backend->stream_new(s->device, (enum backend_priority)record.priority, &s->local, &s->error) == 0)
        s->error.code = ERROR_NONE;
    p->streams[record.stream] = s;
}

static void take_stream_free(struct serving *p, const unsigned char *from)
{
    struct record_stream record;
    struct served_stream *s;

    memcpy(&record, from, sizeof(record));
    s = p->streams[record.stream];
    if (s->local)
        p->backend->stream_free(s->local);
    p->streams[record.stream] = NULL;
    free(s);
}

static void take_cancel(struct serving *p, const unsigned char *from)
{
    struct record_number record;
    struct served_job *job;

    memcpy(&record, from, sizeof(record));
    job = record.number <= EXECUTOR_JOBS_MAX ? p->jobs[record.number] : NULL;
    if (!job || job->serial != record.serial || job->state == SERVED_FREE || job->state == SERVED_ENDED)
        return; /* it has ended meanwhile */
    atomic_store(&job->base.cancel, true);
    if (job->state == SERVED_SUBMITTED && p->backend->cancel)
        p->backend->cancel(&job->base);
}

static void take_program_free(struct serving *p, const unsigned char *from)
{
    struct record_number record;
    struct served_program *program;

    memcpy(&record, from, sizeof(record));
    program = p->programs[record.number];
    if (!program)
        return;
    if (program->local && p->backend->program_free)
        p->backend->program_free(program->device, program->local);
    free(program->steps);
    free(program);
    p->programs[record.number] = NULL;
}

static void take_record(struct serving *p, const unsigned char *from, uint32_t size)
{
    uint32_t kind;

    memcpy(&kind, from, sizeof(kind));
    switch ((enum record_kind)kind) {
    case RECORD_STREAM_NEW:
        take_stream_new(p, from);
        return;
    case RECORD_STREAM_FREE:
        take_stream_free(p, from);
        return;
    case RECORD_SUBMIT:
        take_submit(p, from, size);
        return;
    case RECORD_CANCEL:
        take_cancel(p, from);
        return;
    case RECORD_PROGRAM_FREE:
        take_program_free(p, from);
        return;
    default:
        give_up("kind");
    }
}

static bool take_records(struct serving *p)
{
    const void *record;
    bool any = false;
    uint32_t size;

    while ((record = ring_peek(&p->in, &size))) {
        take_record(p, record, size);
        ring_next(&p->in);
        any = true;
    }
    if (p->in.corrupt)
        give_up("ring");
    if (any && atomic_load_explicit(&p->region->wants_room, memory_order_relaxed) &&
        atomic_exchange(&p->region->wants_room, 0))
        ring_bell(p);
    return any;
}

/* ---- the loop's entries ---- */

static void note_progress(struct serving *p)
{
    for (unsigned slot = 1; slot <= EXECUTOR_JOBS_MAX && p->jobs[slot]; slot++)
        if (p->jobs[slot]->state == SERVED_SUBMITTED)
            atomic_store_explicit(&p->region->ended[slot], p->jobs[slot]->base.ended, memory_order_relaxed);
}

/* Tells the daemon once of each device that is lost, after its jobs' ends. */
static void report_lost(struct serving *p)
{
    for (unsigned i = 0; i < p->n_devices; i++) {
        struct record_lost *record;

        if (!p->devices[i]->lost || p->lost & 1U << i || !list_empty(&p->unreported))
            continue;
        record = ring_reserve(&p->out, sizeof(*record));
        if (!record)
            return;
        *record = (struct record_lost){.kind = RECORD_LOST, .device = i};
        ring_publish(&p->out);
        write_bell(p); /* a daemon without jobs here does not say that it sleeps */
        p->lost |= 1U << i;
    }
}

bool jobs_turn(struct serving *p)
{
    enum { TURNS_A_NOTE = 1024 };
    const unsigned before = p->unfinished;
    bool any = take_records(p);

    any = take_prepared(p) || any;
    for (unsigned i = 0; i < p->n_devices; i++)
        p->backend->poll(p->devices[i]);
    any = any || p->unfinished != before;
    if (!list_empty(&p->unreported))
        any = report_rest(p) || any;
    report_lost(p);
    if (p->unfinished && ++p->turns % TURNS_A_NOTE == 0)
        note_progress(p);
    return any;
}

void jobs_arm(struct serving *p)
{
    note_progress(p);
    for (unsigned i = 0; i < p->n_devices; i++)
        p->backend->arm(p->devices[i]);
}
