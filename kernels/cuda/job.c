/* Owns the backend's part of jobs: its pool, and how a job comes in. Everything runs on the loop thread but
 * cuda_prepare(), which has its stream and job to itself while it runs. */
#include "job.h"

#include <math.h>
#include <stdlib.h>

#include "device.h"
#include "peer.h"
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
    job->steps = NULL;
    job->n_steps = 0;
    job->graph = NULL;
    job->signalled = false;
    job->issued = job->reaped = 0;
    job->tail = NULL;
    return job;
}

static void release_steps(struct cuda_job *job)
{
    for (unsigned i = 0; job->steps && i < job->n_steps; i++) {
        cuda_work_release(&job->steps[i].work);
        free(job->steps[i].staged);
    }
    if (job->steps != &job->first)
        free(job->steps);
    job->steps = NULL;
}

void cuda_job_give(struct cuda_device *d, struct cuda_job *job)
{
    release_steps(job);
    cuda_graph_unref(job->graph);
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

int cuda_job_take_steps(const struct cuda_device *d, struct cuda_job *job, const struct backend_job *base,
                        struct error *e)
{
    struct cuda_step *steps = &job->first;

    if (base->n_steps > 1)
        steps = malloc(base->n_steps * sizeof(*steps));
    if (!steps)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for %u steps", base->n_steps);
    for (unsigned i = 0; i < base->n_steps; i++) {
        steps[i].work.plan = &base->steps[i].plan;
        steps[i].work.variant = NULL;
        steps[i].work.blaslt = NULL;
        steps[i].staged = NULL;
        cuda_step_addresses(d, &base->steps[i], steps[i].work.addresses);
    }
    job->steps = steps;
    job->n_steps = base->n_steps;
    return 0;
}

static bool is_staged(const struct backend_job *job)
{
    for (unsigned i = 0; i < job->n_steps; i++)
        if (cuda_staging_is_needed(&job->steps[i]))
            return true;
    return false;
}

/* The first operand whose memory is another device's that this one was not given access to yet; NULL: none. */
static struct backend_memory *find_peer(const struct cuda_device *d, const struct backend_job *job)
{
    for (unsigned i = 0; i < job->n_steps; i++) {
        const struct backend_step *step = &job->steps[i];

        for (unsigned t = 0; t < step->op->n_inputs + step->op->n_outputs; t++)
            if (!cuda_peer_is_admitted(d, step->operands[t].memory))
                return step->operands[t].memory;
    }
    return NULL;
}

bool cuda_needs_prepare(struct backend_device *base, const struct backend_job *job)
{
    struct cuda_device *d = cuda_device(base);
    struct cuda_graph *graph;

    if (backend_job_is_empty(job))
        return false;
    if (is_staged(job) || find_peer(d, job))
        return true;
    if (cuda_graph_is_wanted(job)) {
        graph = cuda_graph_find(d, job);
        cuda_graph_unref(graph);
        return !graph;
    }
    for (unsigned i = 0; i < job->n_steps; i++) {
        uint64_t addresses[STEP_MAX_OPERANDS];

        if (plan_is_empty(&job->steps[i].plan))
            continue;
        cuda_step_addresses(d, &job->steps[i], addresses);
        if (!cuda_work_is_ready(d, &job->steps[i], addresses))
            return true;
    }
    return false;
}

static int prepare_step(struct cuda_stream *s, const struct backend_step *step, struct cuda_step *own, struct error *e)
{
    if (plan_is_empty(&step->plan))
        return 0;
    if (cuda_staging_is_needed(step)) {
        own->staged = calloc(1, sizeof(*own->staged));
        if (!own->staged)
            return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to stage a tensor");
        own->staged->plan = step->plan;
        own->work.plan = &own->staged->plan;
        if (cuda_staging_prepare(s, step, &own->staged->staging, &own->staged->plan, own->work.addresses, e) < 0)
            return -1;
    }
    return cuda_work_prepare(s->device, step, &own->work, e);
}

/* Copies on their way may come from memory that the caller unmaps: waits for them, then gives the scratch back. */
static void undo_staging(struct cuda_stream *s, struct cuda_job *job, bool copying)
{
    struct error ignored;

    if (copying)
        CUDA_CALL(s->device, &ignored, StreamSynchronize, s->stream);
    for (unsigned i = 0; i < job->n_steps; i++)
        if (job->steps[i].staged) {
            cuda_staging_release(s->device, &job->steps[i].staged->staging);
            cuda_staging_free(s, &job->steps[i].staged->staging);
        }
}

static int prepare_steps(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct error *e)
{
    struct cuda_staging *staging;

    if (cuda_job_take_steps(s->device, job, base, e) < 0)
        return -1;
    for (unsigned i = 0; i < base->n_steps; i++)
        if (prepare_step(s, &base->steps[i], &job->steps[i], e) < 0) {
            backend_job_blame(base, i, e);
            undo_staging(s, job, false);
            return -1;
        }
    staging = cuda_job_staging(job);
    if (staging) {
        base->started_ns = clock_now_ns();
        if (cuda_staging_copy_in(s, staging, base->timing, e) < 0) {
            undo_staging(s, job, true);
            base->started_ns = 0;
            return -1;
        }
    }
    return 0;
}

int cuda_prepare(struct backend_stream *stream, struct backend_job *base, struct error *e)
{
    struct cuda_stream *s = cuda_stream(stream);
    struct cuda_device *d = s->device;
    struct backend_memory *peer;
    struct cuda_job *job;

    if (cuda_enter(d, e) < 0)
        return -1;
    while ((peer = find_peer(d, base)))
        if (cuda_peer_allow(d, peer, e) < 0)
            return -1;
    job = job_take(d);
    if (!job)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a job");
    if (cuda_graph_is_wanted(base) && !is_staged(base) && cuda_graph_make(d, base, &job->graph, e) < 0)
        goto give_job;
    if (!job->graph && prepare_steps(s, base, job, e) < 0)
        goto give_job;
    job->prepared = true;
    base->impl = job;
    return 0;

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
    base->ended = 0;
    base->n_samples = 0;
    base->h2d_us = base->d2h_us = NAN;
    if (!base->impl) {
        base->started_ns = 0;
        base->impl = job_take(d);
    }
    if (list_empty(&s->jobs)) {
        list_append(&d->busy, &s->link);
        d->progress_ns = clock_now_ns();
    }
    list_append(&s->jobs, &base->link);
    if (s->next == &s->jobs)
        s->next = &base->link;
    d->unfinished++;
    /* Without it, poll() ends the job with the device's fault, or what cuda_enter() left for it. */
    if (cuda_enter(d, &e) == 0)
        cuda_stream_issue(s);
}
