/* Owns the backend's part of jobs. Everything runs on the loop thread but cuda_prepare(), which has its stream and job
 * to itself while it runs. */
#include "job.h"

#include <math.h>
#include <stdlib.h>

#include "blaslt.h"
#include "device.h"
#include "util/clock.h"
#include "waiter.h"

static struct cuda_job *job_take(struct cuda_device *d)
{
    struct cuda_job *job;
    struct list *node;

    pthread_mutex_lock(&d->job_lock);
    node = list_first(&d->free_jobs);
    if (node)
        list_remove(node);
    pthread_mutex_unlock(&d->job_lock);
    job = node ? list_entry(node, struct cuda_job, link) : malloc(sizeof(*job));
    if (!job)
        return NULL;
    /* The launch and the ring of executions are written before they are read; zeroing them would cost more than the
     * rest of a submission's bookkeeping. */
    list_init(&job->link);
    job->state = JOB_NEW;
    job->prepared = false;
    job->work.variant = NULL;
    job->work.blaslt = NULL;
    job->staging.active = false;
    job->issued = job->reaped = 0;
    job->tail = NULL;
    return job;
}

static void job_give(struct cuda_device *d, struct cuda_job *job)
{
    cuda_work_release(&job->work);
    pthread_mutex_lock(&d->job_lock);
    list_append(&d->free_jobs, &job->link);
    pthread_mutex_unlock(&d->job_lock);
}

void cuda_jobs_close(struct cuda_device *d)
{
    list_for_each_safe (node, after, &d->free_jobs) {
        list_remove(node);
        free(list_entry(node, struct cuda_job, link));
    }
}

static void device_addresses(const struct backend_job *base, uint64_t *addresses)
{
    for (unsigned i = 0; i < base->op->n_inputs + base->op->n_outputs; i++)
        addresses[i] = base->operands[i].memory ? base->operands[i].memory->address + base->operands[i].offset : 0;
}

bool cuda_needs_prepare(struct backend_device *base, const struct backend_job *job)
{
    uint64_t addresses[PLAN_MAX_OPERANDS];

    if (plan_is_empty(&job->plan))
        return false;
    if (cuda_staging_is_needed(job))
        return true;
    device_addresses(job, addresses);
    return !cuda_work_is_ready(cuda_device(base), job, addresses);
}

int cuda_prepare(struct backend_stream *stream, struct backend_job *base, struct error *e)
{
    struct cuda_stream *s = cuda_stream(stream);
    struct cuda_device *d = s->device;
    struct cuda_job *job;
    struct error ignored;

    if (cuda_enter(d, e) < 0)
        return -1;
    job = job_take(d);
    if (!job)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a job");
    device_addresses(base, job->work.addresses);
    if (cuda_staging_is_needed(base)) {
        base->started_ns = clock_now_ns();
        if (cuda_staging_begin(s, base, &job->staging, job->work.addresses, e) < 0)
            goto give_job;
    }
    if (cuda_work_prepare(d, base, &job->work, e) < 0)
        goto drain;
    job->prepared = true;
    base->impl = job;
    return 0;

drain:
    if (job->staging.active) {
        CUDA_CALL(d, &ignored, StreamSynchronize, s->stream);
        cuda_staging_release(d, &job->staging);
        cuda_staging_free(s, &job->staging);
    }
give_job:
    job_give(d, job);
    base->started_ns = 0;
    return -1;
}

/* ---- issuing ---- */

static uint32_t executions_of(const struct backend_job *base)
{
    return plan_is_empty(&base->plan) ? 0 : base->warmup + base->repeat;
}

/* Keeps the first error. */
static void fail(struct backend_job *base, const struct error *e)
{
    if (!base->failed)
        base->error = *e;
    base->failed = true;
}

static void cancel(struct backend_job *base)
{
    struct error e;

    error_set(&e, ERROR_CANCELLED, "the job was cancelled; its outputs are undefined when it had started");
    fail(base, &e);
}

static int start(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct error *e)
{
    if (plan_is_empty(&base->plan)) {
        const char *const *names = cuda_variants(&s->device->base, base->op, base->plan.dtype);

        base->variant_used = base->variant ? base->variant : names ? names[0] : NULL;
        return 0;
    }
    if (!job->prepared) {
        device_addresses(base, job->work.addresses);
        if (cuda_work_prepare(s->device, base, &job->work, e) < 0)
            return -1;
    }
    base->variant_used = job->work.variant;
    if (job->work.blaslt && blaslt_plan_workspace(job->work.blaslt) > 0 && cuda_stream_need_workspace(s, e) < 0)
        return -1;
    if (!base->started_ns)
        base->started_ns = clock_now_ns();
    return 0;
}

static int issue_one(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct error *e)
{
    struct cuda_execution *x = &job->executions[job->issued % JOB_WINDOW];
    bool timed = base->timing && job->issued >= base->warmup;
    struct cuda_device *d = s->device;
    struct error ignored;
    int r;

    x->start = NULL;
    if (timed && cuda_event_mark(d, EVENT_TIMED, s->stream, &x->start, e) < 0)
        return -1;
    r = cuda_work_issue(s, base, &job->work, e);
    /* Also after a failure: part of the work may be on its way. */
    if (cuda_event_mark(d, timed ? EVENT_TIMED_END : EVENT_PLAIN_END, s->stream, &x->end, r < 0 ? &ignored : e) < 0)
        goto lose_track;
    job->issued++;
    s->in_flight++;
    return r;

lose_track:
    /* Nothing will tell when the kernel has ended, so no memory could be given back safely. */
    cuda_device_break(d, CUDA_ERROR_UNKNOWN);
    cuda_event_return(d, EVENT_TIMED, x->start);
    return -1;
}

/* What comes after the last execution: the copies back, and the scratch memory's end. */
static int issue_tail(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct error *e)
{
    int r = 0;

    if (!job->staging.active)
        return 0;
    if (!base->failed)
        r = cuda_staging_write_back(s, base, &job->staging, e);
    if (cuda_event_mark(s->device, EVENT_TIMED_END, s->stream, &job->tail, e) < 0) {
        cuda_device_break(s->device, CUDA_ERROR_UNKNOWN);
        r = -1;
    }
    cuda_staging_free(s, &job->staging);
    return r;
}

/* Issues what the windows allow. Returns true once nothing of the job is left to issue. */
static bool issue(struct cuda_stream *s, struct backend_job *base)
{
    struct cuda_job *job = base->impl;
    uint32_t total = executions_of(base);
    struct error e;

    if (!job) {
        error_set(&e, ERROR_OUT_OF_MEMORY, "no memory for a job");
        fail(base, &e);
        return true;
    }
    if (job->state == JOB_NEW) {
        job->state = JOB_ISSUING;
        if (atomic_load_explicit(&base->cancel, memory_order_relaxed))
            cancel(base);
        else if (start(s, base, job, &e) < 0)
            fail(base, &e);
    }
    while (!base->failed && job->issued < total) {
        if (job->issued - job->reaped >= JOB_WINDOW || s->in_flight >= STREAM_WINDOW)
            return false;
        if (atomic_load_explicit(&base->cancel, memory_order_relaxed))
            cancel(base);
        else if (issue_one(s, base, job, &e) < 0)
            fail(base, &e);
    }
    if (issue_tail(s, base, job, &e) < 0)
        fail(base, &e);
    job->state = JOB_ISSUED;
    return true;
}

static void issue_stream(struct cuda_stream *s)
{
    while (s->next != &s->jobs && !cuda_device_is_broken(s->device)) {
        if (!issue(s, list_entry(s->next, struct backend_job, link)))
            return;
        s->next = s->next->next;
    }
}

void cuda_submit(struct backend_stream *stream, struct backend_job *base)
{
    struct cuda_stream *s = cuda_stream(stream);
    struct cuda_device *d = s->device;
    struct error e;

    base->failed = false;
    base->variant_used = NULL;
    base->n_samples = 0;
    base->h2d_us = base->d2h_us = NAN;
    if (!base->impl) {
        base->started_ns = 0;
        base->impl = job_take(d);
    }
    if (list_empty(&s->jobs))
        list_append(&d->busy, &s->link);
    list_append(&s->jobs, &base->link);
    if (s->next == &s->jobs)
        s->next = &base->link;
    d->unfinished++;
    /* Without it, poll() ends the job with the device's fault, or what cuda_enter() left for it. */
    if (cuda_enter(d, &e) == 0)
        issue_stream(s);
}

/* ---- reaping ---- */

CUevent cuda_stream_next_event(const struct cuda_stream *s)
{
    const struct backend_job *base;
    const struct cuda_job *job;

    if (list_empty(&s->jobs))
        return NULL;
    base = list_entry(s->jobs.next, struct backend_job, link);
    job = base->impl;
    if (job->reaped < job->issued)
        return job->executions[job->reaped % JOB_WINDOW].end;
    return job->state == JOB_ISSUED ? job->tail : NULL;
}

/* True when the event has happened. */
static bool happened(struct cuda_device *d, CUevent event)
{
    CUresult r = cuda.EventQuery(event);
    struct error ignored;

    if (r == CUDA_SUCCESS)
        return true;
    if (r != CUDA_ERROR_NOT_READY && !cuda_device_is_broken(d)) {
        cuda_fail(d, r, "cuEventQuery", &ignored);
        /* An event of ours that cannot be asked means as much as a sticky fault. */
        cuda_device_break(d, r);
    }
    return false;
}

/* An event goes back to the pool, unless a waiter still sleeps on it and returns it then. */
static void return_end(struct cuda_stream *s, enum cuda_event_kind kind, CUevent event)
{
    if (event && event == s->waited) {
        s->waited = NULL;
        cuda_waiters_adopt(s->device, kind, event);
    } else {
        cuda_event_return(s->device, kind, event);
    }
}

static void end_execution(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, bool measure)
{
    struct cuda_execution *x = &job->executions[job->reaped % JOB_WINDOW];

    if (x->start && measure) {
        double us = cuda_event_us(x->start, x->end);

        if (!isnan(us))
            base->samples[base->n_samples++] = us;
    }
    return_end(s, x->start ? EVENT_TIMED_END : EVENT_PLAIN_END, x->end);
    cuda_event_return(s->device, EVENT_TIMED, x->start);
    job->reaped++;
    s->in_flight--;
}

/* Takes note of what has ended. Returns true when that is all of the job. */
static bool reap(struct cuda_stream *s, struct backend_job *base)
{
    struct cuda_job *job = base->impl;

    while (job->reaped < job->issued) {
        if (!happened(s->device, job->executions[job->reaped % JOB_WINDOW].end))
            return false;
        end_execution(s, base, job, true);
    }
    if (job->state != JOB_ISSUED)
        return false;
    if (job->tail && !happened(s->device, job->tail))
        return false;
    if (base->timing && job->staging.active) {
        base->h2d_us = cuda_event_us(job->staging.h2d_start, job->staging.h2d_end);
        base->d2h_us = cuda_event_us(job->staging.d2h_start, job->tail);
    }
    return true;
}

/* Takes the job off its stream and keeps it for done(). */
static void finish(struct cuda_stream *s, struct backend_job *base, struct list *finished)
{
    struct cuda_device *d = s->device;
    struct cuda_job *job = base->impl;

    if (s->next == &base->link)
        s->next = base->link.next;
    list_remove(&base->link);
    list_append(finished, &base->link);
    if (!job)
        return;
    if (job->staging.active) {
        cuda_staging_release(d, &job->staging);
        return_end(s, EVENT_TIMED_END, job->tail);
    }
    base->impl = NULL;
    job_give(d, job);
}

/* The device is lost: everything fails, and no event will ever be asked again. */
static void fail_stream(struct cuda_stream *s, struct list *finished)
{
    list_for_each_safe (node, after, &s->jobs) {
        struct backend_job *base = list_entry(node, struct backend_job, link);
        struct cuda_job *job = base->impl;
        struct error e;

        base->failed = false;
        cuda_device_lost(s->device, &e);
        fail(base, &e);
        while (job && job->reaped < job->issued)
            end_execution(s, base, job, false);
        finish(s, base, finished);
    }
}

/* Ends the jobs at the stream's head that have ended. */
static void finish_ended(struct cuda_stream *s, struct list *finished)
{
    while (!list_empty(&s->jobs)) {
        struct backend_job *base = list_entry(s->jobs.next, struct backend_job, link);

        if (base->impl ? !reap(s, base) : !base->failed)
            return;
        finish(s, base, finished);
    }
}

static void advance_stream(struct cuda_stream *s, struct list *finished)
{
    /* Twice, since reaping makes room in the windows, and what is issued then may need no device at all; but not until
     * nothing moves, because other streams wait. */
    for (unsigned round = 0; round < 2; round++) {
        issue_stream(s);
        finish_ended(s, finished);
        if (s->next == &s->jobs)
            return;
    }
}

static void poll_streams(struct cuda_device *d, struct list *finished)
{
    struct error ignored;
    bool usable = cuda_enter(d, &ignored) == 0;

    list_for_each_safe (node, after, &d->busy) {
        struct cuda_stream *s = list_entry(node, struct cuda_stream, link);

        if (usable)
            advance_stream(s, finished);
    }
    if (cuda_device_is_broken(d)) {
        d->base.lost = true;
        list_for_each_safe (node, after, &d->busy) {
            fail_stream(list_entry(node, struct cuda_stream, link), finished);
        }
    }
    list_for_each_safe (node, after, &d->busy) {
        struct cuda_stream *s = list_entry(node, struct cuda_stream, link);

        if (!list_empty(&s->jobs))
            continue;
        list_remove(node);
        if (!d->base.lost)
            cuda_stream_rest(s);
    }
}

unsigned cuda_poll(struct backend_device *base)
{
    struct cuda_device *d = cuda_device(base);
    struct list finished;
    struct list *node;

    if (cuda_device_is_broken(d))
        base->lost = true;
    if (d->unfinished == 0)
        return 0;
    list_init(&finished);
    poll_streams(d, &finished);
    /* Last, because done() may submit more, or free streams. */
    while ((node = list_first(&finished))) {
        struct backend_job *job = list_entry(node, struct backend_job, link);

        list_remove(node);
        d->unfinished--;
        job->done(job);
    }
    return d->unfinished;
}
