/* Jobs in the executor: from the daemon's records to the backend, and back. Thread: the loop. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/memory.h"
#include "executor/serve.h"
#include "util/log.h"

/* ---- reports ---- */

static void ring_bell(const struct serving *p)
{
    atomic_thread_fence(memory_order_seq_cst);
    if (atomic_load_explicit(&p->region->daemon_sleeps, memory_order_relaxed) &&
        atomic_exchange(&p->region->daemon_sleeps, 0))
        bell_ring(p->bell);
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
    const uint32_t counted = base->counters && !base->failed ? sizeof(*base->counters) : 0;
    struct record_done *record = ring_reserve(&p->out, (uint32_t)sizeof(*record) + error_bytes +
                                                           base->n_steps * (uint32_t)STEP_VARIANT_BYTES + counted);
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
                                   .has_sample = base->n_samples > job->reported,
                                   .timer = base->timer,
                                   .timed_later = base->timed_later,
                                   .counted = counted != 0,
                                   .prepared = base->prepared,
                                   .overslept = p->overslept,
                                   .sample = base->n_samples > job->reported ? base->samples[job->reported] : 0,
                                   .started_ns = base->started_ns,
                                   .gpu_begin_ns = base->gpu_begin_ns,
                                   .gpu_end_ns = base->gpu_end_ns,
                                   .h2d_us = base->h2d_us,
                                   .d2h_us = base->d2h_us};
    at = (unsigned char *)(record + 1);
    memcpy(at, &base->error, error_bytes);
    at += error_bytes;
    for (unsigned i = 0; i < base->n_steps; i++, at += STEP_VARIANT_BYTES)
        memcpy(at, base->steps[i].variant_used, STEP_VARIANT_BYTES);
    if (counted)
        memcpy(at, base->counters, counted);
    ring_publish(&p->out);
    return true;
}

enum { STEPS_KEPT = 32 };

static void free_job(struct served_job *job)
{
    if (job->room > STEPS_KEPT) {
        free(job->steps);
        job->steps = NULL;
        job->room = 0;
    }
    if (job->samples != &job->sample)
        free(job->samples);
    job->samples = NULL;
    free(job->counters);
    job->counters = NULL;
    job->state = SERVED_FREE;
}

/* Reports the job's end. False: there is no room now. */
static bool report(struct serving *p, struct served_job *job)
{
    if (job->base.n_samples != 1 && !report_samples(p, job))
        return false;
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
        list_append(&p->unreported, &job->list_link);
}

/* The time is a statistic: where there is no room now, it is lost. */
void jobs_on_timed(void *serving, uint64_t token, const struct backend_times *times)
{
    struct serving *p = serving;
    struct record_timed *record = ring_reserve(&p->out, sizeof(*record));

    if (!record)
        return;
    *record = (struct record_timed){.kind = RECORD_TIMED, .token = token, .times = *times};
    ring_publish(&p->out);
    p->timed = true;
}

/* ---- jobs ---- */

static void on_done(struct backend_job *base)
{
    struct served_job *job = (struct served_job *)(void *)base;
    struct serving *p = job->serving;

    p->unfinished--;
    list_remove(&job->list_link);
    end(p, job);
}

static void submit(struct serving *p, const struct served_stream *s, struct served_job *job)
{
    job->state = SERVED_RUNNING;
    if (!s->local) {
        job->base.failed = true;
        job->base.error = s->error;
        end(p, job);
        return;
    }
    p->unfinished++;
    list_append(&p->running, &job->list_link);
    p->backend->submit(s->local, &job->base);
}

/* ---- the daemon's records ---- */

/* The daemon and this process are one program: nothing can repair a record that makes no sense. */
static void give_up(const char *what)
{
    log_error("executor", "why=\"the daemon's record makes no sense: %s\"", what);
    _exit(1);
}

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
        list_init(&job->list_link);
    }
    if (job->state != SERVED_FREE || record->stream > EXECUTOR_STREAMS_MAX || !p->streams[record->stream])
        give_up("job");
    job->serving = p;
    job->slot = record->slot;
    job->serial = record->serial;
    job->reported = 0;
    job->samples = &job->sample;
    if (record->repeat > 1)
        job->samples = malloc(record->repeat * sizeof(double));
    if (!job->samples)
        give_up("no memory for its samples");
    return job;
}

static void unpack(const struct serving *p, struct step *steps, uint32_t n, const unsigned char *from, uint32_t size)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t bytes = step_unpack(from, size, &steps[i]);
        uint64_t *function = &steps[i].plan.kernel.function;

        if (!bytes)
            give_up("steps");
        if (steps[i].plan.kind == PLAN_KERNEL) {
            if (*function > EXECUTOR_FUNCTIONS_MAX || !p->functions[*function])
                give_up("function");
            *function = p->functions[*function]; /* the backend's own, in place of its number */
        }
        from += bytes;
        size -= bytes;
    }
}

/* A run of a program has steps of its own: earlier runs may be under way on other memory. The slot may have the steps
 * of an earlier run. */
static void bind(struct served_job *job, const struct served_program *program, const unsigned char *from, uint32_t size)
{
    struct step *steps = job->steps;

    if (job->bound != program->serial)
        memcpy(steps, program->steps, program->n_steps * sizeof(*steps));
    job->bound = program->serial;
    for (uint32_t i = 0; i < program->n_steps; i++) {
        const uint32_t bytes = step_operands(&steps[i]) * (uint32_t)sizeof(steps[i].operands[0]);

        steps[i].variant_used[0] = '\0';

        if (size < bytes)
            give_up("operands");
        memcpy(steps[i].operands, from, bytes);
        from += bytes;
        size -= bytes;
    }
}

static struct served_program *new_program(struct serving *p, const struct served_job *job,
                                          const struct record_submit *record)
{
    struct served_program *program = p->programs[record->program] = calloc(1, sizeof(*program));
    const uint32_t n = record->n_steps;

    if (program)
        program->steps = malloc(n * sizeof(*program->steps));
    if (!program || !program->steps)
        give_up("no memory for a program");
    program->serial = ++p->programs_made;
    program->n_steps = n;
    program->device = p->streams[record->stream]->device;
    memcpy(program->steps, job->steps, n * sizeof(*program->steps));
    return program;
}

static void take_steps(struct serving *p, struct served_job *job, const struct record_submit *record,
                       const unsigned char *from, uint32_t size)
{
    struct served_program *program = NULL;

    if (record->n_steps > job->room) {
        free(job->steps);
        job->steps = malloc(record->n_steps * sizeof(*job->steps));
        job->room = record->n_steps;
        job->bound = 0;
    }
    if (!job->steps)
        give_up("no memory for its steps");
    if (record->program > EXECUTOR_PROGRAMS_MAX || !record->n_steps)
        give_up("program");
    if (record->replay) {
        program = p->programs[record->program];
        if (!program || program->n_steps != record->n_steps)
            give_up("program");
        bind(job, program, from, size);
    } else {
        job->bound = 0;
        unpack(p, job->steps, record->n_steps, from, size);
        if (record->program)
            program = new_program(p, job, record);
    }
    job->base.program = program ? &program->local : NULL;
}

static void take_submit(struct serving *p, const unsigned char *from, uint32_t size)
{
    enum { FEW_STEPS = 4 };
    struct record_submit record;
    struct served_job *job;

    memcpy(&record, from, sizeof(record));
    job = new_job(p, &record);
    if (record.n_steps > FEW_STEPS && !p->issuing) {
        p->issuing = true;
        atomic_store_explicit(&p->region->issuing, 1, memory_order_relaxed);
    }
    take_steps(p, job, &record, from + sizeof(record), size - (uint32_t)sizeof(record));
    job->base.steps = job->steps;
    job->base.n_steps = record.n_steps;
    job->base.warmup = record.warmup;
    job->base.repeat = record.repeat;
    job->base.timing = (enum backend_timing)record.timing;
    job->base.token = record.token;
    if (record.counts) {
        job->counters = malloc(sizeof(*job->counters));
        if (!job->counters)
            give_up("no memory for its counters");
        job->counters->warm = record.warm;
        counters_clear(job->counters);
    }
    job->base.counters = job->counters;
    job->base.owner = record.owner;
    job->base.samples = job->samples;
    job->base.signal = (struct backend_signal){.offset = record.signal_offset, .value = record.signal_value};
    if (record.signal_page)
        job->base.signal.page = memory_by_id(record.signal_page);
    job->base.done = on_done;
    job->base.impl = NULL;
    backend_job_begin(&job->base);
    job->base.window = record.window;
    atomic_store_explicit(&job->base.cancel, false, memory_order_relaxed);
    submit(p, p->streams[record.stream], job);
}

static void take_stream_new(struct serving *p, const unsigned char *from)
{
    struct record_stream record;
    struct served_stream *s = calloc(1, sizeof(*s));

    memcpy(&record, from, sizeof(record));
    if (!s || !record.stream || record.stream > EXECUTOR_STREAMS_MAX || record.device >= p->n_devices ||
        !atomic_load(&p->active[record.device]))
        give_up("stream");
    s->device = p->devices[record.device];
    if (p->backend->stream_new(s->device, (enum backend_priority)record.priority, &s->local, &s->error) < 0)
        s->local = NULL;
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
    if (!job || job->serial != record.serial || job->state != SERVED_RUNNING)
        return; /* the job has ended meanwhile */
    atomic_store(&job->base.cancel, true);
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
    if (kind == RECORD_STREAM_NEW)
        take_stream_new(p, from);
    else if (kind == RECORD_STREAM_FREE)
        take_stream_free(p, from);
    else if (kind == RECORD_SUBMIT)
        take_submit(p, from, size);
    else if (kind == RECORD_CANCEL)
        take_cancel(p, from);
    else if (kind == RECORD_PROGRAM_FREE)
        take_program_free(p, from);
    else
        give_up("kind");
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
    if (any)
        atomic_thread_fence(memory_order_seq_cst); /* the ring's word was stored before */
    if (any && atomic_load_explicit(&p->region->wants_room, memory_order_relaxed) &&
        atomic_exchange(&p->region->wants_room, 0))
        ring_bell(p);
    return any;
}

/* ---- the loop's entries ---- */

int jobs_init(struct serving *p, struct error *e)
{
    list_init(&p->running);
    list_init(&p->unreported);
    p->streams = calloc(EXECUTOR_STREAMS_MAX + 1, sizeof(*p->streams));
    p->programs = calloc(EXECUTOR_PROGRAMS_MAX + 1, sizeof(*p->programs));
    p->jobs = calloc(EXECUTOR_JOBS_MAX + 1, sizeof(*p->jobs));
    p->codes = calloc(EXECUTOR_CODES_MAX + 1, sizeof(struct backend_code *));
    p->functions = calloc(EXECUTOR_FUNCTIONS_MAX + 1, sizeof(*p->functions));
    return p->streams && p->programs && p->jobs && p->codes && p->functions
               ? 0
               : error_set(e, ERROR_OUT_OF_MEMORY, "no memory for jobs");
}

/* A daemon that has no jobs here does not say that it sleeps. */
static void tell_of_times(struct serving *p)
{
    if (!p->timed)
        return;
    p->timed = false;
    bell_ring(p->bell);
}

static void note_progress(struct serving *p)
{
    list_each (struct served_job, job, list_link, &p->running) {
        atomic_store_explicit(&p->region->ended[job->slot], job->base.ended, memory_order_relaxed);
    }
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
        bell_ring(p->bell); /* a daemon without jobs here does not say that it sleeps */
        p->lost |= 1U << i;
    }
}

bool jobs_turn(struct serving *p)
{
    enum { TURNS_A_NOTE = 1024 };
    const unsigned before = p->unfinished;
    bool any = take_records(p);

    if (p->issuing) {
        p->issuing = false;
        atomic_store_explicit(&p->region->issuing, 0, memory_order_relaxed);
    }
    if (atomic_load_explicit(&p->woken, memory_order_relaxed))
        atomic_exchange(&p->woken, false);
    for (unsigned i = 0; i < p->n_devices; i++)
        if (atomic_load_explicit(&p->active[i], memory_order_acquire)) {
            p->backend->poll(p->devices[i]);
            any = any || p->devices[i]->active;
            p->devices[i]->active = false;
        }
    tell_of_times(p);
    any = any || p->unfinished != before;
    list_each (struct served_job, job, list_link, &p->unreported) {
        if (!report(p, job))
            break;
        list_remove(&job->list_link);
        any = true;
    }
    report_lost(p);
    if (p->unfinished && ++p->turns % TURNS_A_NOTE == 0)
        note_progress(p);
    return any;
}

void jobs_arm(struct serving *p)
{
    note_progress(p);
    for (unsigned i = 0; i < p->n_devices; i++)
        if (atomic_load_explicit(&p->active[i], memory_order_acquire))
            p->backend->arm(p->devices[i]);
    tell_of_times(p);
}

struct serve_wait jobs_wait(const struct serving *p, uint64_t now_ns)
{
    enum { JOBS_LOOKED_AT = 16 }; /* the oldest: a look is short, whatever there is */
    struct serve_wait wait = {.until_ns = UINT64_MAX, .all_later = true};
    unsigned n = 0;

    list_each (struct served_job, job, list_link, &p->running) {
        const struct wait_window *w = &job->base.window;

        if (wait_is_known(w) && wait_polls(w, now_ns)) {
            wait.poll = true;
            break;
        }
        if (!wait_sleeps_first(w, now_ns))
            wait.all_later = false;
        else if (wait_sleep_end(w, now_ns) < wait.until_ns)
            wait.until_ns = wait_sleep_end(w, now_ns);
        if (++n == JOBS_LOOKED_AT)
            break;
    }
    wait.all_later = wait.all_later && n > 0 && n < JOBS_LOOKED_AT;
    return wait;
}
