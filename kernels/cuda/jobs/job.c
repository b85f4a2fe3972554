/* Owns the pool of freed jobs, which are reused, and the steps of a job. */
#include "job.h"

#include <stdlib.h>

#include "graph.h"
#include "memory/operand.h"

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
