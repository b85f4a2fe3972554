/* The room's thread: takes tasks, has them measured, and publishes what was found. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/tune/room.h"
#include "util/clock.h"
#include "util/log.h"

enum {
    LOOK_NS = 200 * 1000, /* between two looks at a device that has work */
    REST_S = 10,          /* without a task the tuner's process ends: its context takes memory of the GPU */
};

/* How still a device must be before a measurement, and how long one waits for that: a tuning that was asked for goes on
 * in the end, so rarely that a client with request after request has its 99th percentile as before. */
static const struct patience {
    uint64_t still_ns, at_most_ns;
} asked = {1000 * 1000, 5 * 1000 * 1000}, idle = {100 * 1000 * 1000, 10ULL * 1000 * 1000 * 1000};

/* ---- the pace ---- */

struct pace {
    struct tuning_pace base; /* first */
    struct tune *tune;
    const struct tune_task *task;
};

static bool is_to_end(const struct pace *p)
{
    bool ending;

    pthread_mutex_lock(&p->tune->lock);
    ending = p->tune->ending;
    pthread_mutex_unlock(&p->tune->lock);
    return ending || atomic_load(&p->task->cancelled);
}

static int wait_until_still(struct tuning_pace *base, struct error *e)
{
    struct pace *p = (struct pace *)(void *)base;
    const struct patience *patience = p->task->idle ? &idle : &asked;
    const atomic_bool *busy = &p->tune->busy[p->task->device->index];
    const struct timespec look = {.tv_nsec = LOOK_NS};
    const uint64_t begin_ns = clock_now_ns();
    uint64_t still_ns = begin_ns, jobs = atomic_load(&p->tune->jobs);

    for (;;) {
        const uint64_t now_ns = clock_now_ns(), jobs_now = atomic_load(&p->tune->jobs);

        if (is_to_end(p))
            return error_set(e, ERROR_CANCELLED, "the tuning was cancelled");
        if (atomic_load(busy) || jobs_now != jobs)
            still_ns = now_ns;
        jobs = jobs_now;
        if (now_ns - still_ns >= patience->still_ns)
            return 0;
        if (now_ns - begin_ns >= patience->at_most_ns)
            return p->task->idle ? error_set(e, ERROR_CANCELLED, "the device has work") : 0;
        nanosleep(&look, NULL);
    }
}

/* ---- what was found ---- */

static void conclude(struct tune *t, struct store *store, const struct tuning_result *r)
{
    const struct tuning_candidate *best = &r->candidates[r->best], *usual = &r->candidates[r->usual];
    struct timespec now;
    struct tuned tuned;

    clock_gettime(CLOCK_REALTIME, &now);
    memset(&tuned, 0, sizeof(tuned));
    tuned.key = r->key;
    tuned.choice = best->choice;
    snprintf(tuned.machine, sizeof(tuned.machine), "%s", r->machine);
    snprintf(tuned.problem, sizeof(tuned.problem), "%s", r->problem);
    snprintf(tuned.chosen, sizeof(tuned.chosen), "%s", best->text);
    snprintf(tuned.usual, sizeof(tuned.usual), "%s", usual->text);
    tuned.us = best->us;
    tuned.usual_us = usual->us;
    tuned.noise = r->noise;
    tuned.at_s = now.tv_sec;
    tuned_publish(t, &tuned);
    store_put(store, &tuned);
}

/* ---- the thread ---- */

/* Whether the driver says that the device is not idle: the daemon has no work there. */
static bool others_use(struct backend_device *d)
{
    struct backend_conditions c;

    if (!d->backend->conditions)
        return false;
    d->backend->conditions(d, &c);
    return !*c.missing && !(c.reasons & 1U << CONDITION_IDLE);
}

static void work_on(struct tune *t, struct store *store, struct tune_task *task)
{
    struct pace pace = {.base = {.wait = wait_until_still}, .tune = t, .task = task};
    const uint64_t begin_ns = clock_now_ns();

    task->failed = true;
    if (atomic_load(&task->cancelled)) {
        error_set(&task->error, ERROR_CANCELLED, "the tuning was cancelled");
        return;
    }
    if (task->idle && others_use(task->device)) {
        error_set(&task->error, ERROR_CANCELLED, "other programs use the device");
        return;
    }
    task->failed =
        task->device->backend->tune(task->device, &task->request, &pace.base, &task->result, &task->error) < 0;
    task->took_ns = clock_now_ns() - begin_ns;
    if (!task->failed)
        conclude(t, store, &task->result);
}

static void hand_back(struct tune *t, struct tune_task *task)
{
    pthread_mutex_lock(&t->lock);
    t->current = NULL;
    list_append(&t->done, &task->link);
    pthread_mutex_unlock(&t->lock);
    atomic_store_explicit(&t->news, true, memory_order_release);
    server_wake(t->server);
}

/* Whether tuning takes memory of a device while nothing is tuned; `now`: it gives that back. */
static bool rest(const struct server *s, bool now)
{
    bool takes = false;

    for (unsigned i = 0; i < s->devices.count; i++) {
        struct backend_device *d = s->devices.all[i];

        if (d->backend->tune_rest)
            takes |= d->backend->tune_rest(d, now);
    }
    return takes;
}

/* The next task; NULL: none came in time, everything is to be forgotten, or the thread is to end. Under the lock. */
static struct tune_task *next_task(struct tune *t)
{
    const bool rests = !rest(t->server, false);
    struct timespec until;
    struct list *node;
    int r = 0;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += REST_S;
    while (list_empty(&t->queue) && !t->ending && !t->clear_wanted && r == 0)
        r = rests ? pthread_cond_wait(&t->wanted, &t->lock) : pthread_cond_timedwait(&t->wanted, &t->lock, &until);
    node = t->ending || t->clear_wanted ? NULL : list_pop(&t->queue);
    t->current = node ? list_entry(node, struct tune_task, link) : NULL;
    return t->current;
}

static void forget(struct tune *t, struct store *store)
{
    tuning_table_clear(t->table);
    store_clear(store);
}

void *measurer_run(void *argument)
{
    struct tune *t = argument;
    struct store *store = store_open(t->server->config.code.directory, true);
    bool ending = false;

    while (!ending) {
        struct tune_task *task;
        bool clear;

        pthread_mutex_lock(&t->lock);
        task = next_task(t);
        ending = t->ending;
        clear = t->clear_wanted;
        t->clear_wanted = false;
        pthread_mutex_unlock(&t->lock);
        if (clear)
            forget(t, store);
        if (task) {
            work_on(t, store, task);
            hand_back(t, task);
        } else if (!clear) {
            rest(t->server, true);
        }
    }
    store_close(store);
    return NULL;
}
