/* Keepers: a thread for each executor. It starts the process, does what may wait for it, and reaps it. So an executor
 * that hangs costs no other thread. */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "executor/front.h"
#include "util/clock.h"
#include "util/log.h"

bool front_task_add(struct executor *x, struct front_task *task)
{
    if (x->state == PROCESS_ENDING)
        return false;
    list_append(&x->tasks, &task->link);
    pthread_cond_signal(&x->wanted);
    return true;
}

static void note_start(struct executor *x, int result, const struct error *e)
{
    struct front *f = x->front;

    pthread_mutex_lock(&f->lock);
    x->start_error.code = ERROR_NONE;
    if (result < 0)
        x->start_error = *e;
    if (x->state == PROCESS_STARTING)
        x->state = result < 0 ? PROCESS_ENDING : PROCESS_SPARE;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
    front_tell(f);
}

/* The next task; NULL: the executor is to end, and takes no more of them. */
static struct front_task *next_task(struct executor *x)
{
    struct list *node;

    pthread_mutex_lock(&x->front->lock);
    while (!(node = list_pop(&x->tasks)) && x->state != PROCESS_ENDING && !x->stop)
        pthread_cond_wait(&x->wanted, &x->front->lock);
    if (!node)
        x->state = PROCESS_ENDING;
    pthread_mutex_unlock(&x->front->lock);
    return node ? list_entry(node, struct front_task, link) : NULL;
}

/* Makes contexts before they are needed: of the only device, or of those that were needed before. */
static void warm_up(struct executor *x)
{
    const unsigned used = atomic_load(&x->front->used);
    struct error e;

    for (uint32_t i = 0; i < x->n_described; i++)
        if ((x->n_described == 1 || used >> i & 1) && front_device_open(x, i, &e) < 0)
            log_warning("executor", "pid=%d device=%u why=\"%s\"", (int)x->pid, i, e.message);
}

static void *keep(void *argument)
{
    struct executor *x = argument;
    struct front_task *task;
    struct error e = {.code = ERROR_NONE};
    const int r = front_process_start(x, &e);

    if (r == 0 && !x->common)
        warm_up(x);
    note_start(x, r, &e);
    if (r == 0 && x->common) /* the daemon is ready before */
        warm_up(x);
    while ((task = next_task(x)))
        task->run(x, task);
    front_process_end(x);
    pthread_mutex_lock(&x->front->lock);
    x->ended = true;
    pthread_cond_broadcast(&x->front->changed);
    pthread_mutex_unlock(&x->front->lock);
    front_tell(x->front);
    return NULL;
}

static bool take_bit(struct front *f, struct executor *x)
{
    for (unsigned i = 0; i < EXECUTORS_MAX; i++)
        if (!f->by_bit[i]) {
            x->bit = i;
            f->by_bit[i] = x;
            return true;
        }
    return false;
}

static void remove_locked(struct executor *x)
{
    pthread_mutex_lock(&x->front->lock);
    list_remove(&x->link);
    x->front->by_bit[x->bit] = NULL;
    pthread_mutex_unlock(&x->front->lock);
}

struct executor *front_executor_start(struct front *f, bool common, int counts, struct error *e)
{
    struct executor *x = front_process_new(f, common, counts, e);
    bool added;

    if (!x)
        return NULL;
    x->state = PROCESS_STARTING;
    x->start_error.code = ERROR_NONE;
    x->started_ns = x->used_ns = clock_now_ns();
    pthread_mutex_lock(&f->lock);
    added = take_bit(f, x);
    if (added)
        list_append(&f->executors, &x->link);
    pthread_mutex_unlock(&f->lock);
    if (!added || pthread_create(&x->keeper, NULL, keep, x) != 0) {
        if (added)
            remove_locked(x);
        front_process_free(x);
        error_set(e, ERROR_OUT_OF_MEMORY, "no thread, or no place, for an executor");
        return NULL;
    }
    f->counts.started++;
    return x;
}

void front_executor_stop(struct executor *x)
{
    front_unwatch(x);
    pthread_mutex_lock(&x->front->lock);
    x->stop = true;
    pthread_cond_signal(&x->wanted);
    pthread_mutex_unlock(&x->front->lock);
}

void front_executor_release(struct executor *x)
{
    pthread_mutex_lock(&x->front->lock);
    if (--x->users == 0)
        pthread_cond_broadcast(&x->front->changed);
    pthread_mutex_unlock(&x->front->lock);
}

#define LAST_CALLS_NS UINT64_C(10000000000) /* for calls that are under way at the daemon's end */

static void wait_for_end(struct executor *x, uint64_t until_ns)
{
    const struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000), .tv_nsec = (long)(until_ns % 1000000000)};
    struct front *f = x->front;

    pthread_mutex_lock(&f->lock);
    while (!x->ended && clock_now_ns() < until_ns)
        pthread_cond_timedwait(&f->changed, &f->lock, &until);
    pthread_mutex_unlock(&f->lock);
}

void front_executors_end(struct front *f)
{
    const uint64_t until_ns = clock_now_ns() + LAST_CALLS_NS;

    list_for_each_safe (node, after, &f->executors) {
        struct executor *x = list_entry(node, struct executor, link);

        if (x->common && x->ready)
            front_executor_stop(x);
        else
            front_abort(x); /* its keeper may be waiting for it for long */
    }
    while (!list_empty(&f->executors)) {
        struct executor *x = list_entry(list_first(&f->executors), struct executor, link);

        wait_for_end(x, until_ns);
        front_abort(x);
        front_domain_lose(x);
        front_executor_join(x);
        front_executor_free(x);
    }
}

void front_executor_join(struct executor *x)
{
    struct front *f = x->front;

    pthread_join(x->keeper, NULL);
    pthread_mutex_lock(&f->lock);
    while (x->users)
        pthread_cond_wait(&f->changed, &f->lock);
    pthread_mutex_unlock(&f->lock);
}

void front_executor_free(struct executor *x)
{
    front_unwatch(x);
    remove_locked(x);
    front_process_free(x);
}
