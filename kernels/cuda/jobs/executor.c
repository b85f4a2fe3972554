/* Opens and closes the executor of one device, makes progress on its streams, detects the end of executions and jobs,
 * measures them, and takes them off their streams. */
#include "executor.h"

#include <math.h>
#include <string.h>

#include "compute/kernels.h"
#include "util/clock.h"
#include "util/log.h"

enum cuda_wait { WAIT_NOTHING /* poll now */, WAIT_EVENT, WAIT_FLAG, WAIT_THREAD /* a thread wakes the loop */ };

/* ---- the end of executions and jobs ---- */

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

static enum cuda_wait cuda_stream_waits_for(struct cuda_stream *s, CUevent *ret_event)
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

/* Moves ended jobs from the stream's head to `finished`. */
static void cuda_stream_finish(struct cuda_stream *s, struct list *finished)
{
    while (!list_empty(&s->jobs)) {
        struct backend_job *base = list_entry(s->jobs.next, struct backend_job, link);

        if (base->impl ? !collect(s, base) : !base->failed)
            return;
        finish(s, base, finished);
    }
}

/* Moves all jobs of the stream to `finished` when the device is lost. Jobs that had ended before succeed, as far as
 * flags and events still tell; the others fail. A job that a thread prepares stays until the next call, with those
 * behind it. */
static void cuda_stream_fail(struct cuda_stream *s, struct list *finished)
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

/* Queries the stream, and marks the device broken if the query fails, or if a user's kernel has overwritten the
 * stream's flag, which would hide the end of its work. */
static void cuda_stream_check(struct cuda_stream *s)
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

int cuda_executor_open(struct cuda_executor *x, struct cuda_device *d, const struct cuda_kernels *kernels,
                       struct error *e)
{
    x->device = d;
    x->kernels = kernels;
    list_init(&x->busy);
    cuda_capture_open(&x->capture, d, kernels);
    if (cuda_streams_open(&x->streams, d, kernels->workspace_bytes, e) < 0)
        goto close_capture;
    if (cuda_stamps_open(d, &kernels->embedded, &x->stamps, e) < 0)
        goto close_streams;
    cuda_recorded_init(&x->recorded);
    cuda_gates_init(&x->gates, &x->stamps, &kernels->embedded);
    cuda_overhead_measure(d, &kernels->embedded, &x->streams.flags, &x->gates, &x->overhead);
    x->waiters = cuda_waiters_new(d);
    if (!x->waiters) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for the waiting threads' table");
        goto close_stamps;
    }
    cuda_job_pool_open(&x->job_pool);
    return 0;

close_stamps:
    cuda_stamps_close(d, &x->stamps);
close_streams:
    cuda_streams_close(&x->streams);
close_capture:
    cuda_capture_close(&x->capture);
    return -1;
}

void cuda_executor_close(struct cuda_executor *x)
{
    x->waiters = cuda_waiters_free(x->waiters);
    cuda_job_pool_close(&x->job_pool);
    cuda_stamps_close(x->device, &x->stamps);
    cuda_streams_close(&x->streams);
    cuda_capture_close(&x->capture);
}

/* ---- the loop's entries ---- */

enum { HEALTH_NS = 1000 * 1000, POLLS_A_CLOCK = 64 };

static void advance_stream(struct cuda_stream *s, struct list *finished)
{
    /* Two rounds: an ended execution lets others be issued, which may end at once. Not more: other streams wait. */
    for (unsigned round = 0; round < 2; round++) {
        if (s->next != &s->jobs)
            cuda_stream_issue(s);
        cuda_stream_finish(s, finished);
        if (s->next == &s->jobs)
            return;
    }
}

/* No flag is written in a broken context, so a stream is queried now and then, which also reveals a broken context. The
 * clock is not read at each poll, since that would cost more than the poll. */
static void check_health(struct cuda_executor *x)
{
    struct list *node = list_first(&x->busy);
    uint64_t now;

    if (!node || ++x->polls % POLLS_A_CLOCK)
        return;
    now = clock_now_ns();
    if (now - x->health_checked_ns < HEALTH_NS)
        return;
    x->health_checked_ns = now;
    cuda_stream_check(list_entry(node, struct cuda_stream, link));
    list_remove(node); /* the next check queries another stream */
    list_append(&x->busy, node);
}

static void poll_streams(struct cuda_executor *x, struct list *finished)
{
    struct cuda_device *d = x->device;
    struct error ignored;
    bool usable = cuda_enter(d, &ignored) == 0;

    list_for_each_safe (node, after, &x->busy) {
        struct cuda_stream *s = list_entry(node, struct cuda_stream, link);

        if (usable)
            advance_stream(s, finished);
    }
    if (usable)
        check_health(x);
    if (cuda_device_is_broken(d)) {
        d->base.lost = true;
        list_for_each_safe (node, after, &x->busy) {
            cuda_stream_fail(list_entry(node, struct cuda_stream, link), finished);
        }
    }
    if (list_empty(finished))
        return;
    list_for_each_safe (node, after, &x->busy) {
        struct cuda_stream *s = list_entry(node, struct cuda_stream, link);

        if (!list_empty(&s->jobs))
            continue;
        list_remove(node);
        if (!d->base.lost)
            cuda_stream_rest(s);
    }
}

unsigned cuda_poll(struct cuda_executor *x)
{
    struct list finished;
    struct list *node;

    if (cuda_device_is_broken(x->device))
        x->device->base.lost = true;
    if (x->unfinished == 0)
        return 0;
    list_init(&finished);
    poll_streams(x, &finished);
    /* done() may submit jobs and free streams. */
    while ((node = list_first(&finished))) {
        struct backend_job *job = list_entry(node, struct backend_job, link);

        list_remove(node);
        x->unfinished--;
        job->done(job);
    }
    cuda_recorded_tell(&x->recorded, &x->device->host, false, x->progress_ns);
    return x->unfinished;
}

void cuda_arm(struct cuda_executor *x)
{
    bool now = cuda_device_is_broken(x->device);
    bool nap = cuda_recorded_tell(&x->recorded, &x->device->host, true, x->progress_ns);

    list_for_each_safe (node, after, &x->busy) {
        struct cuda_stream *s = list_entry(node, struct cuda_stream, link);
        CUevent next = NULL;

        switch (cuda_stream_waits_for(s, &next)) {
        case WAIT_NOTHING:
            now = true;
            break;
        case WAIT_FLAG:
            nap = true;
            break;
        case WAIT_THREAD:
            break;
        case WAIT_EVENT:
            if (next != s->waited && cuda_waiters_sleep(x->waiters, next, x->progress_ns))
                s->waited = next;
            else if (next != s->waited)
                nap = true;
            break;
        }
    }
    if (nap && !now) {
        now = !cuda_waiters_nap(x->waiters, x->progress_ns);
        x->polls = POLLS_A_CLOCK - 1; /* the next poll reads the clock */
    }
    if (now)
        x->device->host.wake(x->device->host.context);
}
