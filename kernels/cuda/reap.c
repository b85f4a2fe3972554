/* Owns the other end: what has ended is measured, taken off its stream and given back to the server, in order. Thread:
 * loop. */
#include "job.h"

#include <math.h>
#include <string.h>

#include "device.h"
#include "util/clock.h"
#include "util/log.h"
#include "waiter.h"

enum { HEALTH_NS = 1000 * 1000, LOOKS_A_CLOCK = 64 };

/* True when the event has happened. */
static bool happened(struct cuda_device *d, CUevent event)
{
    CUresult r = cuda_on(d)->EventQuery(event);
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

/* True when the execution has ended. */
static bool ended(const struct cuda_stream *s, const struct cuda_execution *x)
{
    if (!x->mark)
        return happened(s->device, x->end);
    return atomic_load_explicit(s->flag, memory_order_acquire) >= x->mark;
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

static void drop_wake(struct cuda_stream *s)
{
    return_end(s, EVENT_PLAIN_END, s->wake);
    s->wake = NULL;
}

/* The event behind the last execution that was issued, for a thread to sleep on; NULL: the driver gives none, and a
 * thread naps instead. That works, so only the log tells. */
static CUevent wake_event(struct cuda_stream *s)
{
    struct error e;

    if (s->wake && s->wake_mark != s->marks)
        drop_wake(s);
    if (s->wake)
        return s->wake;
    if (cuda_event_mark(s->device, EVENT_PLAIN_END, s->stream, &s->wake, &e) == 0) {
        s->wake_mark = s->marks;
    } else if (!s->device->told_of_naps) {
        char quoted[300];

        s->device->told_of_naps = true;
        log_warning("cuda_event_refused", "device=%s reason=%s", s->device->base.info.uuid,
                    log_quote(quoted, sizeof(quoted), e.message, strlen(e.message)));
    }
    return s->wake;
}

enum cuda_wait cuda_stream_waits_for(struct cuda_stream *s, CUevent *ret_event)
{
    const struct backend_job *base;
    const struct cuda_execution *x;
    struct cuda_job *job;

    if (list_empty(&s->jobs))
        return WAIT_NOTHING;
    base = list_entry(s->jobs.next, struct backend_job, link);
    job = base->impl;
    if (!job || job->reaped == job->issued) {
        *ret_event = job && job->state == JOB_ISSUED ? job->tail : NULL;
        return *ret_event ? WAIT_EVENT : WAIT_NOTHING;
    }
    x = &job->executions[job->reaped % JOB_WINDOW];
    if (!x->mark) {
        *ret_event = x->end;
        return WAIT_EVENT;
    }
    if (ended(s, x))
        return WAIT_NOTHING;
    if (s->in_flight > 1)
        return WAIT_FLAG; /* an event recorded now would happen behind all of them */
    *ret_event = wake_event(s);
    if (!*ret_event)
        return WAIT_FLAG;
    /* Once it has happened nobody sleeps on it any more, and the flag is there or about to be. */
    return happened(s->device, *ret_event) ? WAIT_NOTHING : WAIT_EVENT;
}

static void end_execution(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, bool measure)
{
    struct cuda_execution *x = &job->executions[job->reaped % JOB_WINDOW];

    if (x->start && measure) {
        double us = cuda_event_us(s->device, x->start, x->end);

        if (!isnan(us))
            base->samples[base->n_samples++] = us;
    }
    if (s->wake)
        drop_wake(s);
    return_end(s, cuda_end_kind(s, x), x->end);
    cuda_event_return(s->device, EVENT_TIMED, x->start);
    base->ended = ++job->reaped;
    s->device->progress_ns = clock_now_ns();
    s->in_flight--;
    s->steps_in_flight -= x->steps;
}

/* Takes note of what has ended. Returns true when that is all of the job. */
static bool reap(struct cuda_stream *s, struct backend_job *base)
{
    struct cuda_job *job = base->impl;
    struct cuda_staging *staging;

    while (job->reaped < job->issued) {
        if (!ended(s, &job->executions[job->reaped % JOB_WINDOW]))
            return false;
        end_execution(s, base, job, true);
    }
    if (job->state != JOB_ISSUED)
        return false;
    if (job->tail && !happened(s->device, job->tail))
        return false;
    staging = cuda_job_staging(job);
    if (base->timing && staging) {
        base->h2d_us = cuda_event_us(s->device, staging->h2d_start, staging->h2d_end);
        base->d2h_us = cuda_event_us(s->device, staging->d2h_start, job->tail);
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
    for (unsigned i = 0; job->steps && i < job->n_steps; i++)
        if (job->steps[i].staged)
            cuda_staging_release(d, &job->steps[i].staged->staging);
    return_end(s, EVENT_TIMED_END, job->tail);
    base->impl = NULL;
    cuda_job_give(d, job);
}

/* The device is lost: everything fails, and no event will ever be asked again. */
static void fail_stream(struct cuda_stream *s, struct list *finished)
{
    list_for_each_safe (node, after, &s->jobs) {
        struct backend_job *base = list_entry(node, struct backend_job, link);
        struct cuda_job *job = base->impl;
        struct error e;

        base->failed = false;
        if (s->device->abandoned_why.code != ERROR_NONE)
            e = s->device->abandoned_why;
        else
            cuda_device_lost(s->device, &e);
        cuda_job_fail(base, &e);
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
        cuda_stream_issue(s);
        finish_ended(s, finished);
        if (s->next == &s->jobs)
            return;
    }
}

/* A flag says nothing of a context that broke, where it is never written: the driver is asked now and then. */
static void check_health(struct cuda_device *d)
{
    struct cuda_stream *s;
    struct error ignored;
    uint64_t now;
    CUresult r;

    if (list_empty(&d->busy) || ++d->looks % LOOKS_A_CLOCK)
        return;
    now = clock_now_ns();
    if (now - d->health_checked_ns < HEALTH_NS)
        return;
    d->health_checked_ns = now;
    s = list_entry(list_first(&d->busy), struct cuda_stream, link);
    r = cuda_on(d)->StreamQuery(s->stream);
    if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY) {
        cuda_fail(d, r, "cuStreamQuery", &ignored);
        cuda_device_break(d, r);
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
    if (usable)
        check_health(d);
    if (cuda_device_is_broken(d)) {
        d->base.lost = true;
        list_for_each_safe (node, after, &d->busy) {
            fail_stream(list_entry(node, struct cuda_stream, link), finished);
        }
        d->abandoned_why.code = ERROR_NONE;
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
