/* Owns the threads that prepare jobs. */
#include "executor/serve.h"

static void prepare(struct workers *w, struct served_job *job)
{
    job->base.failed = w->serving->gpus->prepare(job->stream->local, &job->base, &job->base.error) < 0;
}

static void *run(void *argument)
{
    struct workers *w = argument;

    pthread_mutex_lock(&w->lock);
    for (;;) {
        struct served_job *job;

        while (list_empty(&w->waiting)) {
            w->n_idle++;
            pthread_cond_wait(&w->wanted, &w->lock);
            w->n_idle--;
        }
        job = list_entry(list_first(&w->waiting), struct served_job, work_link);
        list_remove(&job->work_link);
        pthread_mutex_unlock(&w->lock);
        prepare(w, job);
        pthread_mutex_lock(&w->lock);
        list_append(&w->done, &job->work_link);
        atomic_store(&w->serving->work_done, true);
        serve_wake(w->serving);
    }
    return NULL;
}

void workers_init(struct workers *w, struct serving *p)
{
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wanted, NULL);
    list_init(&w->waiting);
    list_init(&w->done);
    w->serving = p;
}

void workers_prepare(struct workers *w, struct served_job *job)
{
    bool own = false;
    pthread_t thread;

    pthread_mutex_lock(&w->lock);
    list_append(&w->waiting, &job->work_link);
    if (!w->n_idle && w->n_threads < SERVE_WORKERS_MAX && pthread_create(&thread, NULL, run, w) == 0) {
        pthread_detach(thread);
        w->n_threads++;
    }
    own = !w->n_threads;
    if (own)
        list_remove(&job->work_link);
    pthread_cond_signal(&w->wanted);
    pthread_mutex_unlock(&w->lock);
    if (!own)
        return;
    prepare(w, job);
    pthread_mutex_lock(&w->lock);
    list_append(&w->done, &job->work_link);
    pthread_mutex_unlock(&w->lock);
    atomic_store(&w->serving->work_done, true);
}

void workers_take(struct workers *w, struct list *ret_done)
{
    atomic_store(&w->serving->work_done, false);
    pthread_mutex_lock(&w->lock);
    list_take(ret_done, &w->done);
    pthread_mutex_unlock(&w->lock);
}
