/* Jobs in the executor: from the daemon's records to the backend, and back. Thread: the loop. */
#include <stdlib.h>
#include <string.h>

#include "executor/bell.h"
#include "executor/serve.h"

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

/* ---- reports ---- */

void jobs_ring_bell(const struct serving *p)
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
                                   .prepared = job->prepared,
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

/* Tells the daemon. False: there is no room now. */
static bool report(struct serving *p, struct served_job *job)
{
    if (job->base.n_samples != 1 && !report_samples(p, job))
        return false;
    /* Before the record: behind it the slot may have its next job. */
    list_remove(&job->stream_link);
    if (!report_end(p, job))
        return false;
    free_job(job);
    jobs_ring_bell(p);
    return true;
}

static void end(struct serving *p, struct served_job *job)
{
    job->state = SERVED_ENDED;
    if (!list_empty(&p->unreported) || !report(p, job))
        list_append(&p->unreported, &job->list_link);
}

/* A statistic: where there is no room now, it is lost. */
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

static bool report_rest(struct serving *p)
{
    bool any = false;

    while (!list_empty(&p->unreported)) {
        struct served_job *job = list_entry(list_first(&p->unreported), struct served_job, list_link);

        if (!report(p, job))
            break;
        list_remove(&job->list_link);
        any = true;
    }
    return any;
}

/* ---- jobs ---- */

void jobs_on_done(struct backend_job *base)
{
    struct served_job *job = (struct served_job *)(void *)base;
    struct served_stream *s = job->stream;
    struct serving *p = s->serving;

    s->submitted--;
    p->unfinished--;
    list_remove(&job->list_link);
    end(p, job);
    jobs_advance(p, s);
}

static void submit(struct serving *p, struct served_stream *s, struct served_job *job)
{
    s->next = s->next->next;
    s->submitted++;
    p->unfinished++;
    job->state = SERVED_SUBMITTED;
    list_append(&p->running, &job->list_link);
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

void jobs_advance(struct serving *p, struct served_stream *s)
{
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
        if (job->state == SERVED_WAITING && p->gpus->needs_prepare(s->device, &job->base)) {
            if (s->submitted)
                return;
            job->state = SERVED_PREPARING;
            job->prepared = true;
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
    while ((first = list_pop(&done))) {
        struct served_job *job = list_entry(first, struct served_job, work_link);

        job->state = SERVED_PREPARED;
        jobs_advance(p, job->stream);
    }
    return true;
}

/* ---- the loop's entries ---- */

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
    list_for_each_safe (node, after, &p->running) {
        const struct served_job *job = list_entry(node, struct served_job, list_link);

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
    bool any = records_take(p);

    any = take_prepared(p) || any;
    if (p->issuing) {
        p->issuing = false;
        atomic_store_explicit(&p->region->issuing, 0, memory_order_relaxed);
    }
    if (atomic_load_explicit(&p->woken, memory_order_relaxed))
        atomic_exchange(&p->woken, false);
    for (unsigned i = 0; i < p->n_devices; i++)
        if (atomic_load_explicit(&p->active[i], memory_order_acquire))
            p->backend->poll(p->devices[i]);
    tell_of_times(p);
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
        if (atomic_load_explicit(&p->active[i], memory_order_acquire))
            p->backend->arm(p->devices[i]);
    tell_of_times(p);
}

struct serve_wait jobs_wait(const struct serving *p, uint64_t now_ns)
{
    enum { JOBS_LOOKED_AT = 16 }; /* the oldest: a look is short, whatever there is */
    struct serve_wait wait = {.until_ns = UINT64_MAX, .all_later = true};
    unsigned n = 0;

    list_for_each_safe (node, after, &p->running) {
        const struct wait_window *w = &list_entry(node, struct served_job, list_link)->base.window;

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
