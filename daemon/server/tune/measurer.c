/* The room's thread: takes tasks, has them measured, and publishes what was found. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/tune/pace.h"
#include "server/tune/room.h"
#include "util/clock.h"
#include "util/log.h"

enum {
    LOOK_NS = 200 * 1000, /* between two looks at a device that has work */
    REST_S = 10,          /* without a task the tuner's process ends: its context takes memory of the GPU */
};

/* ---- the pace ---- */

struct pace {
    struct tuning_pace base; /* first */
    struct tune *tune;
    struct tune_task *task;
    struct tune_pace look;
};

static bool is_to_end(const struct pace *p)
{
    bool ending;

    pthread_mutex_lock(&p->tune->lock);
    ending = p->tune->ending;
    pthread_mutex_unlock(&p->tune->lock);
    return ending || atomic_load(&p->task->cancelled);
}

static int wait_for_the_device(struct tuning_pace *base, struct error *e)
{
    struct pace *p = (struct pace *)(void *)base;
    const struct tune_load *load = &p->tune->load[p->task->device->index];
    const struct timespec look = {.tv_nsec = LOOK_NS};
    enum tune_word word;

    tune_pace_begin(&p->look, clock_now_ns(), atomic_load(&load->begun));
    for (;;) {
        if (is_to_end(p))
            return error_set(e, ERROR_CANCELLED, "the tuning was cancelled");
        word = tune_pace_look(&p->look, clock_now_ns(), atomic_load(&load->running), atomic_load(&load->begun));
        if (word == TUNE_GO)
            return 0;
        if (word == TUNE_GIVE_UP)
            return error_set(e, ERROR_CANCELLED, "the device has work");
        nanosleep(&look, NULL);
    }
}

/* Whoever waits may be answered with the list, and no more, where it takes too long to measure. */
static int on_listed(struct tuning_pace *base, struct tuning_result *result, struct error *e)
{
    const struct pace *p = (struct pace *)(void *)base;
    struct tuning_result *listed;

    if (is_to_end(p))
        return error_set(e, ERROR_CANCELLED, "the tuning was cancelled");
    listed = malloc(sizeof(*listed));
    if (!listed)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a tuning");
    unfinished_recall(p->tune, result);
    *listed = *result;
    pthread_mutex_lock(&p->tune->lock);
    free(p->task->listed);
    p->task->listed = listed;
    pthread_mutex_unlock(&p->tune->lock);
    return 0;
}

/* ---- what was found ---- */

/* Notes the choice. Where there was no time to measure what runs now, it is chosen still, with what was measured
 * then. */
static struct tuned find_out(struct tune *t, const struct tune_task *task)
{
    const struct tuning_result *r = &task->result;
    const struct tuning_candidate *best = &r->candidates[r->best], *usual = &r->candidates[r->usual];
    const struct tuned *old;
    bool is_kept = false;
    struct timespec now;
    struct tuned tuned;

    clock_gettime(CLOCK_REALTIME, &now);
    memset(&tuned, 0, sizeof(tuned));
    pthread_mutex_lock(&t->lock);
    old = tuned_find(t, &r->key);
    if (old && best->state == TUNING_LEFT_OUT) {
        tuned = *old;
        is_kept = true;
    } else if (old) {
        tuned.users = old->users;
    }
    pthread_mutex_unlock(&t->lock);
    tune_users_join(&tuned.users, &task->users);
    tuned.tried = tuning_tried(r);
    tuned.candidates = r->n;
    if (is_kept)
        return tuned;
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
    return tuned;
}

static void log_tuned(const struct tuned *tuned, uint64_t took_ns)
{
    char problem[2 * sizeof(tuned->problem)], chosen[2 * sizeof(tuned->chosen)];

    log_info("tuned", "problem=%s choice=%s tried=%u candidates=%u took_ms=%llu",
             log_quote(problem, sizeof(problem), tuned->problem, strlen(tuned->problem)),
             log_quote(chosen, sizeof(chosen), tuned->chosen, strlen(tuned->chosen)), tuned->tried, tuned->candidates,
             (unsigned long long)(took_ns / (1000 * 1000)));
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

static void work_on(struct tune *t, struct tune_task *task)
{
    struct pace pace = {.base = {.wait = wait_for_the_device, .listed = on_listed},
                        .tune = t,
                        .task = task,
                        .look = {.idle = task->idle, .since = atomic_load(&t->load[task->device->index].begun)}};

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
}

/* The file, which is made when there is something to keep. */
static struct store *open_late(const struct tune *t, struct store **store)
{
    if (!*store)
        *store = store_open(t->server->config.code.directory, true);
    return *store;
}

/* Whoever waits has the answer before the disk has the choice. The task is the loop's from then on. */
static void hand_back(struct tune *t, struct store **store, struct tune_task *task)
{
    struct tuning_result *result = NULL;
    struct tuned tuned;

    if (!task->failed) {
        tuned = find_out(t, task);
        tuned_publish(t, &tuned);
        log_tuned(&tuned, clock_now_ns() - task->begin_ns);
        result = malloc(sizeof(*result));
    }
    if (result)
        *result = task->result;
    pthread_mutex_lock(&t->lock);
    t->current = NULL;
    list_append(&t->done, &task->link);
    pthread_mutex_unlock(&t->lock);
    atomic_store_explicit(&t->news, true, memory_order_release);
    server_wake(t->server);
    if (!result)
        return;
    store_put(open_late(t, store), &tuned);
    unfinished_keep(t, *store, result);
    free(result);
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

static void forget(struct tune *t, struct store **store)
{
    tuning_table_clear(t->table);
    unfinished_clear(t);
    store_clear(open_late(t, store));
}

/* Has ready what the next tuning needs, as far as it takes no memory of devices. */
static void prepare(const struct server *s)
{
    struct error e;

    for (unsigned i = 0; s->config.tuning_ready && i < s->devices.count; i++) {
        struct backend_device *d = s->devices.all[i];
        char quoted[300];

        if (!d->backend->tune_prepare || d->info.exclusive || d->backend->tune_prepare(d, &e) == 0)
            continue;
        if (e.code != ERROR_CANCELLED)
            log_warning("tuner_not_ready", "why=%s", log_quote(quoted, sizeof(quoted), e.message, strlen(e.message)));
        return; /* the next tuning tries it again */
    }
}

void *measurer_run(void *argument)
{
    struct tune *t = argument;
    struct store *store = NULL;
    bool ending = false;

    prepare(t->server);

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
            forget(t, &store);
        if (task) {
            work_on(t, task);
            hand_back(t, &store, task);
        } else if (!clear) {
            rest(t->server, true);
            if (!ending)
                prepare(t->server);
        }
    }
    store_close(store);
    return NULL;
}
