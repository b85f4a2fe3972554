/* Owns the pool of freed jobs, which are reused, and the steps of a job; prepares jobs. */
#include "job.h"

#include <stdlib.h>

#include "compute/kernels.h"
#include "compute/work.h"
#include "counters/count.h"
#include "driver/device.h"
#include "executor.h"
#include "graph.h"
#include "memory/operand.h"
#include "util/clock.h"

void cuda_job_pool_open(struct cuda_job_pool *pool)
{
    pthread_mutex_init(&pool->lock, NULL);
    list_init(&pool->free);
}

struct cuda_job *cuda_job_take(struct cuda_job_pool *pool)
{
    struct cuda_job *job;
    struct list *node;

    pthread_mutex_lock(&pool->lock);
    node = list_first(&pool->free);
    if (node)
        list_remove(node);
    pthread_mutex_unlock(&pool->lock);
    job = node ? list_entry(node, struct cuda_job, link) : malloc(sizeof(*job));
    if (!job)
        return NULL;
    /* The launch and the ring of executions are not zeroed, since they are written before they are read, and zeroing
     * would cost more than the rest of a submission's bookkeeping. */
    list_init(&job->link);
    job->state = JOB_NEW;
    job->prepared = false;
    atomic_init(&job->answered, false);
    job->steps = NULL;
    job->n_steps = 0;
    job->launches = 1;
    job->graph = NULL;
    job->signalled = false;
    job->issued = job->ended = 0;
    job->written_back = false;
    job->tail = NULL;
    job->recorded = false;
    job->exact = NULL;
    job->n_exact = job->exact_read = 0;
    job->later.ticket = 0;
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

void cuda_job_give(struct cuda_job_pool *pool, struct cuda_job *job)
{
    release_steps(job);
    free(job->exact);
    cuda_graph_unref(job->graph);
    pthread_mutex_lock(&pool->lock);
    list_append(&pool->free, &job->link);
    pthread_mutex_unlock(&pool->lock);
}

void cuda_job_pool_close(struct cuda_job_pool *pool)
{
    list_for_each_safe (node, after, &pool->free) {
        list_remove(node);
        free(list_entry(node, struct cuda_job, link));
    }
    pthread_mutex_destroy(&pool->lock);
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
        steps[i].work.repack = NULL;
        steps[i].work.host = NULL;
        steps[i].work.workspace = 0;
        steps[i].work.scratch = 0;
        steps[i].work.launches = 1;
        steps[i].staged = NULL;
        cuda_step_addresses(d, &base->steps[i], steps[i].work.addresses);
    }
    job->steps = steps;
    job->n_steps = base->n_steps;
    return 0;
}

void cuda_job_fail(struct backend_job *base, const struct error *e)
{
    if (!base->failed)
        base->error = *e;
    base->failed = true;
}

/* ---- preparing, which may block. Thread: any. ---- */

enum { LIGHT_STEPS = 8 /* most staged steps of a job that the loop prepares, while other jobs wait */ };

static bool is_staged(const struct backend_job *job)
{
    for (unsigned i = 0; i < job->n_steps; i++)
        if (cuda_step_is_staged(&job->steps[i]))
            return true;
    return false;
}

/* Whether staging the job may block. Transfers of registered memory and a few light steps do not. */
static bool staging_may_block(const struct cuda_device *d, const struct backend_job *job)
{
    for (unsigned i = 0; i < job->n_steps; i++) {
        const struct step *step = &job->steps[i];

        if (cuda_step_is_staged(step) && !(cuda_transfer_fits(step) && cuda_transfer_is_ready(d, step)) &&
            !(job->n_steps <= LIGHT_STEPS && cuda_staging_is_light(d, step)))
            return true;
    }
    return false;
}

static bool has_access(const struct cuda_device *d, const struct backend_job *job)
{
    for (unsigned i = 0; i < job->n_steps; i++)
        if (!cuda_step_has_access(d, &job->steps[i]))
            return false;
    return true;
}

/* Decides whether cuda_prepare() starts CUPTI for the job, and notes that. The start takes some 15 ms. Unless the
 * context's opening started CUPTI, the first job does whose times may be wanted. */
static bool starts_records(struct cuda_executor *x, const struct backend_job *job)
{
    const bool busy = atomic_load_explicit(&x->unfinished, memory_order_relaxed) > 1; /* the job itself counts, too */

    if (cuda_records_were_started() || !cuda_recorded_may_be_wanted(job, busy))
        return false;
    atomic_store_explicit(&x->records_are_wanted, true, memory_order_relaxed);
    return true;
}

bool cuda_needs_prepare(struct cuda_executor *x, const struct backend_job *job)
{
    const struct cuda_device *d = x->device;
    struct cuda_graph *graph;

    if (backend_job_is_empty(job) && !job->counters)
        return false;
    if (starts_records(x, job) || job->counters || staging_may_block(d, job) || !has_access(d, job))
        return true;
    if (cuda_graph_is_wanted(job) && !is_staged(job)) {
        graph = cuda_graph_find(&x->capture, job);
        cuda_graph_unref(graph);
        return !graph;
    }
    for (unsigned i = 0; i < job->n_steps; i++) {
        uint64_t addresses[STEP_MAX_OPERANDS];

        if (plan_is_empty(&job->steps[i].plan))
            continue;
        cuda_step_addresses(d, &job->steps[i], addresses);
        if (!cuda_work_is_ready(x->kernels, &job->steps[i], addresses))
            return true;
    }
    return false;
}

int cuda_prepare_step(struct cuda_stream *s, const struct step *step, struct cuda_step *own, struct error *e)
{
    const struct cuda_kernels *kernels = s->executor->kernels;
    int transfer;

    if (plan_is_empty(&step->plan))
        return 0;
    if (cuda_step_is_staged(step)) {
        transfer = cuda_transfer_take(s->queue.device, step, &own->work, e);
        if (transfer)
            return transfer < 0 ? -1 : 0;
        if (!s->queue.device->has_pools)
            return error_set(
                e, ERROR_UNSUPPORTED,
                "%s has no memory pools, so it cannot copy shared host memory in and out; use device memory",
                s->queue.device->base.info.name);
        if (cuda_staging_is_light(s->queue.device, step) && cuda_stream_need_small(s, e) < 0)
            return -1;
        own->staged = calloc(1, sizeof(*own->staged));
        if (!own->staged)
            return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to stage a tensor");
        own->staged->plan = step->plan;
        own->work.plan = &own->staged->plan;
        if (cuda_staging_prepare(&kernels->embedded, &s->queue, step, &own->staged->staging, &own->staged->plan,
                                 own->work.addresses, e) < 0)
            return -1;
    }
    return cuda_work_prepare(kernels, step, &own->work, e);
}

/* Waits for copies in flight, since the caller may unmap the memory that they read. */
static void undo_staging(struct cuda_stream *s, struct cuda_job *job, bool copying)
{
    struct error ignored;

    if (copying)
        cuda_stream_wait(s->queue.device, s->queue.stream, &ignored);
    for (unsigned i = 0; i < job->n_steps; i++)
        if (job->steps[i].staged) {
            cuda_staging_release(s->queue.device, &job->steps[i].staged->staging);
            cuda_staging_free(&s->queue, &job->steps[i].staged->staging);
        }
}

static int prepare_steps(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct error *e)
{
    struct cuda_staging *staging;

    if (cuda_job_take_steps(s->queue.device, job, base, e) < 0)
        return -1;
    for (unsigned i = 0; i < base->n_steps; i++)
        if (cuda_prepare_step(s, &base->steps[i], &job->steps[i], e) < 0) {
            backend_job_blame(base, i, e);
            undo_staging(s, job, false);
            return -1;
        }
    staging = cuda_job_staging(job);
    if (staging && !cuda_staging_is_quick(staging)) {
        base->started_ns = clock_now_ns();
        if (cuda_staging_copy_in(&s->queue, staging, cuda_job_copies_are_timed(base), e) < 0) {
            undo_staging(s, job, true);
            base->started_ns = 0;
            return -1;
        }
    }
    return 0;
}

static int count(struct cuda_stream *s, struct backend_job *base, struct error *e)
{
    base->started_ns = clock_now_ns();
    return cuda_count(s->executor->kernels, &s->queue, base->steps, base->counters, e);
}

int cuda_prepare(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct error *e)
{
    struct cuda_executor *x = s->executor;

    if (cuda_enter(x->device, e) < 0)
        return -1;
    for (unsigned i = 0; i < base->n_steps; i++)
        if (cuda_step_allow(x->device, &base->steps[i], e) < 0)
            return -1;
    if (atomic_load_explicit(&x->records_are_wanted, memory_order_relaxed))
        cuda_records_start();
    if (base->counters)
        return count(s, base, e);
    if (cuda_graph_is_wanted(base) && !is_staged(base) && cuda_graph_make(&x->capture, base, &job->graph, e) < 0)
        return -1;
    return job->graph ? 0 : prepare_steps(s, base, job, e);
}
