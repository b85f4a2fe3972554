/* Owns the windows: how far ahead of the GPU a stream's executions are issued, and what is issued. Thread: loop. */
#include "job.h"

#include <string.h>

#include "blaslt.h"
#include "device.h"
#include "util/clock.h"

static uint32_t executions_of(const struct backend_job *base)
{
    return plan_is_empty(&base->plan) ? 0 : base->warmup + base->repeat;
}

void cuda_job_fail(struct backend_job *base, const struct error *e)
{
    if (!base->failed)
        base->error = *e;
    base->failed = true;
}

static void cancel(struct backend_job *base)
{
    struct error e;

    error_set(&e, ERROR_CANCELLED, "the job was cancelled; its outputs are undefined when it had started");
    cuda_job_fail(base, &e);
}

/* The name that an op which has nothing to do answers with: it lives as long as the device. */
static const char *nominal_variant(struct cuda_device *d, const struct backend_job *base)
{
    const char *const *names = cuda_variants(&d->base, base->op, base->plan.dtype);

    for (unsigned i = 0; names && base->variant && names[i]; i++)
        if (strcmp(names[i], base->variant) == 0)
            return names[i];
    return names ? names[0] : NULL;
}

/* cuBLASLt's workspace; where there is no memory for it, our own kernel does without. */
static int provide_workspace(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct error *e)
{
    if (!job->work.blaslt || blaslt_plan_workspace(job->work.blaslt) == 0 || cuda_stream_need_workspace(s, e) == 0)
        return 0;
    if (base->variant || cuda_device_is_broken(s->device))
        return -1;
    return cuda_work_prepare_own(s->device, base, &job->work, e);
}

static int start(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct error *e)
{
    if (plan_is_empty(&base->plan)) {
        base->variant_used = nominal_variant(s->device, base);
        return 0;
    }
    if (!job->prepared) {
        cuda_job_addresses(base, job->work.addresses);
        job->work.plan = &base->plan;
        if (cuda_work_prepare(s->device, base, &job->work, e) < 0)
            return -1;
    }
    if (provide_workspace(s, base, job, e) < 0)
        return -1;
    base->variant_used = job->work.variant;
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
    r = cuda_work_issue(s, &job->work, e);
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
        cuda_job_fail(base, &e);
        return true;
    }
    if (job->state == JOB_NEW) {
        job->state = JOB_ISSUING;
        if (atomic_load_explicit(&base->cancel, memory_order_relaxed))
            cancel(base);
        else if (start(s, base, job, &e) < 0)
            cuda_job_fail(base, &e);
    }
    while (!base->failed && job->issued < total) {
        if (job->issued - job->reaped >= JOB_WINDOW || s->in_flight >= STREAM_WINDOW)
            return false;
        if (atomic_load_explicit(&base->cancel, memory_order_relaxed))
            cancel(base);
        else if (issue_one(s, base, job, &e) < 0)
            cuda_job_fail(base, &e);
    }
    if (issue_tail(s, base, job, &e) < 0)
        cuda_job_fail(base, &e);
    job->state = JOB_ISSUED;
    return true;
}

void cuda_stream_issue(struct cuda_stream *s)
{
    while (s->next != &s->jobs && !cuda_device_is_broken(s->device)) {
        if (!issue(s, list_entry(s->next, struct backend_job, link)))
            return;
        s->next = s->next->next;
    }
}
