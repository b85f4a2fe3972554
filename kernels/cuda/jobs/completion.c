/* Detects the end of executions and jobs, measures them, and takes them off their streams. */
#include "executor.h"

#include <math.h>
#include <string.h>

#include "util/clock.h"
#include "util/log.h"

static bool happened(struct cuda_device *d, CUevent event)
{
    CUresult r = cuda_on(d)->EventQuery(event);
    struct error ignored;

    if (r == CUDA_SUCCESS)
        return true;
    if (r != CUDA_ERROR_NOT_READY && !cuda_device_is_broken(d))
        cuda_fail_unseen(d, r, "cuEventQuery", &ignored);
    return false;
}

static bool has_ended(struct cuda_stream *s, const struct cuda_execution *x)
{
    if (!x->mark)
        return happened(s->queue.device, x->end);
    return cuda_marks_ended(&s->marks, s->flag) >= x->mark;
}

/* Returns the event to its pool; if a waiter still sleeps on it, the waiter does that when it wakes. */
static void return_end(struct cuda_stream *s, enum cuda_event_kind kind, CUevent event)
{
    if (event && event == s->waited) {
        s->waited = NULL;
        cuda_waiters_adopt(s->executor->waiters, kind, event);
    } else {
        cuda_event_return(s->queue.device, kind, event);
    }
}

/* Returns the event to sleep on, behind the only execution in flight. It is dropped when that execution ends. NULL: the
 * driver refused an event, which is logged once; a thread naps instead. */
static CUevent wake_event(struct cuda_stream *s)
{
    struct error e;

    if (!s->wake && cuda_event_mark(s->queue.device, EVENT_PLAIN_END, s->queue.stream, &s->wake, &e) < 0 &&
        !s->executor->told_of_naps && !cuda_device_is_broken(s->queue.device)) {
        char quoted[300];

        s->executor->told_of_naps = true;
        log_warning("cuda_event_refused", "device=%s reason=%s", s->queue.device->base.info.uuid,
                    log_quote(quoted, sizeof(quoted), e.message, strlen(e.message)));
    }
    return s->wake;
}

/* Whether CUPTI may hold back records of ended executions, because others are in flight: on this stream, or, with
 * records, on other streams. Without a flag an execution counts as in flight until its end was collected. */
static bool records_may_be_held(struct cuda_stream *s)
{
    return (s->flag ? cuda_stream_executions_ahead(s) : s->in_flight) || s->executor->recorded.under_way > s->recorded;
}

/* Finds what the stream waits for when all issued executions of its first job have ended. */
static enum cuda_wait waits_behind(struct cuda_stream *s, const struct cuda_job *job, CUevent *ret_event)
{
    if (job && job->state == JOB_WAITING)
        return WAIT_FLAG; /* no thread was free */
    if (job && job->state == JOB_PREPARING)
        return atomic_load_explicit(&job->answered, memory_order_acquire) ? WAIT_NOTHING : WAIT_THREAD;
    if (!job || job->state != JOB_ISSUED)
        return WAIT_NOTHING;
    *ret_event = job->tail;
    if (job->tail && !happened(s->queue.device, job->tail))
        return WAIT_EVENT;
    /* The job waits for CUPTI's records, which no event announces. */
    return records_may_be_held(s) ? WAIT_FLAG : WAIT_NOTHING;
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
    if (!job || job->ended == job->issued)
        return waits_behind(s, job, ret_event);
    x = &job->executions[job->ended % JOB_WINDOW];
    if (!x->mark) {
        *ret_event = x->end;
        return WAIT_EVENT;
    }
    if (has_ended(s, x))
        return WAIT_NOTHING;
    if (s->in_flight > 1)
        return WAIT_FLAG; /* an event recorded now would come after all executions in flight */
    *ret_event = wake_event(s);
    if (!*ret_event)
        return WAIT_FLAG;
    /* If the event has already happened, the flag is written by now or very soon, so poll. */
    return happened(s->queue.device, *ret_event) ? WAIT_NOTHING : WAIT_EVENT;
}

static void drop_execution(struct cuda_stream *s, struct cuda_job *job)
{
    struct cuda_execution *x = &job->executions[job->ended++ % JOB_WINDOW];

    if (s->wake)
        return_end(s, EVENT_PLAIN_END, s->wake);
    s->wake = NULL;
    return_end(s, cuda_end_kind(s, x), x->end);
    cuda_event_return(s->queue.device, EVENT_TIMED, x->start);
    s->in_flight--;
    s->steps_in_flight -= x->steps;
    s->recorded -= x->ticket != 0;
    s->executor->recorded.under_way -= x->ticket != 0;
}

static bool collect_records(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job)
{
    const unsigned ahead = cuda_stream_executions_ahead(s);
    const struct cuda_rest rest = {.ended = s->in_flight - ahead, .idle = !ahead, .busy = records_may_be_held(s)};

    if (!cuda_recorded_collect(&s->executor->recorded, base, job, &rest))
        return false;
    if (job->n_exact && base->n_samples)
        s->last_us = base->samples[base->n_samples - 1];
    return true;
}

/* True: the whole job has ended. */
static bool collect(struct cuda_stream *s, struct backend_job *base)
{
    struct cuda_job *job = base->impl;
    struct cuda_staging *staging;

    while (job->ended < job->issued) {
        struct cuda_execution *x = &job->executions[job->ended % JOB_WINDOW];

        if (!has_ended(s, x))
            return false;
        s->executor->progress_ns = clock_now_ns();
        cuda_timed_end(s, base, job, x, s->executor->progress_ns);
        drop_execution(s, job);
        base->ended = job->ended;
    }
    if (job->state != JOB_ISSUED)
        return false;
    if (job->tail && !happened(s->queue.device, job->tail))
        return false;
    if (!collect_records(s, base, job))
        return false;
    staging = cuda_job_staging(job);
    if (base->timing && staging) {
        base->h2d_us = cuda_event_us(s->queue.device, staging->h2d_start, staging->h2d_end);
        base->d2h_us = cuda_event_us(s->queue.device, staging->d2h_start, job->tail);
    }
    return true;
}

static void finish(struct cuda_stream *s, struct backend_job *base, struct list *finished)
{
    struct cuda_job *job = base->impl;

    if (s->next == &base->link)
        s->next = base->link.next;
    list_remove(&base->link);
    s->unfinished--;
    list_append(finished, &base->link);
    if (!job)
        return;
    for (unsigned i = 0; job->steps && i < job->n_steps; i++)
        if (job->steps[i].staged)
            cuda_staging_release(s->queue.device, &job->steps[i].staged->staging);
    return_end(s, EVENT_TIMED_END, job->tail);
    base->impl = NULL;
    cuda_job_give(&s->executor->job_pool, job);
}

void cuda_stream_finish(struct cuda_stream *s, struct list *finished)
{
    while (!list_empty(&s->jobs)) {
        struct backend_job *base = list_entry(s->jobs.next, struct backend_job, link);

        if (base->impl ? !collect(s, base) : !base->failed)
            return;
        finish(s, base, finished);
    }
}

void cuda_stream_fail(struct cuda_stream *s, struct list *finished)
{
    cuda_stream_finish(s, finished); /* jobs that ended before the context broke */
    list_for_each_safe (node, after, &s->jobs) {
        struct backend_job *base = list_entry(node, struct backend_job, link);
        struct cuda_job *job = base->impl;
        struct error e;

        if (job && job->state == JOB_PREPARING && !atomic_load_explicit(&job->answered, memory_order_acquire))
            return; /* a thread has it, and wakes the loop */
        base->failed = false;
        cuda_device_lost(s->queue.device, &e);
        cuda_job_fail(base, &e);
        while (job && job->ended < job->issued)
            drop_execution(s, job);
        finish(s, base, finished);
    }
}

void cuda_stream_check(struct cuda_stream *s)
{
    struct cuda_device *d = s->queue.device;
    CUresult r = cuda_on(d)->StreamQuery(s->queue.stream);
    struct error ignored;

    /* All work of the stream has ended, so any value but the last mark was written by a user's kernel. */
    if (r == CUDA_SUCCESS && s->flag && cuda_stream_executions_ahead(s)) {
        log_warning("cuda_flag_overwritten", "device=%s", d->base.info.uuid);
        r = CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY)
        cuda_fail_unseen(d, r, "cuStreamQuery", &ignored);
}
