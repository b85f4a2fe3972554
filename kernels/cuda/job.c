/* Owns the backend's part of jobs: its pool, and how a job comes in. Everything runs on the loop thread but
 * cuda_prepare(), which has its stream and job to itself while it runs. */
#include "job.h"

#include <math.h>
#include <stdlib.h>

#include "device.h"
#include "util/clock.h"

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
    job->staging.scratch = 0;
    job->staging.h2d_start = job->staging.h2d_end = job->staging.d2h_start = NULL;
    job->staging.n_in = job->staging.n_out = 0;
    job->issued = job->reaped = 0;
    job->tail = NULL;
    return job;
}

void cuda_job_give(struct cuda_device *d, struct cuda_job *job)
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

void cuda_job_addresses(const struct backend_job *base, uint64_t *addresses)
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
    cuda_job_addresses(job, addresses);
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
    cuda_job_addresses(base, job->work.addresses);
    job->work.plan = &base->plan;
    if (cuda_staging_is_needed(base)) {
        job->staged_plan = base->plan;
        job->work.plan = &job->staged_plan;
        if (cuda_staging_prepare(s, base, &job->staging, &job->staged_plan, job->work.addresses, e) < 0)
            goto give_job;
    }
    if (cuda_work_prepare(d, base, &job->work, e) < 0)
        goto free_scratch;
    if (job->staging.active) {
        base->started_ns = clock_now_ns();
        if (cuda_staging_copy_in(s, base, &job->staging, e) < 0)
            goto drain;
    }
    job->prepared = true;
    base->impl = job;
    return 0;

drain:
    /* Copies may be on their way, and the caller may unmap their source. */
    CUDA_CALL(d, &ignored, StreamSynchronize, s->stream);
    cuda_staging_release(d, &job->staging);
    base->started_ns = 0;
free_scratch:
    cuda_staging_free(s, &job->staging);
give_job:
    cuda_job_give(d, job);
    return -1;
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
        cuda_stream_issue(s);
}
