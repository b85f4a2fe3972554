#include "server/tune/tune.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/exec/exec.h"
#include "server/peer/connection.h"
#include "server/tune/room.h"
#include "util/clock.h"
#include "util/log.h"

/* ---- tasks: their way to the measurer and back, and the replies to those who wait for them ----
 *
 * A reply comes in time whatever the measurer does: a process with a context to be made, a library to be loaded, or
 * other users' tunings may take longer. */

/* From the end of a tuning's budget to its reply: for the measurement that began in time, and the end. */
enum { ANSWER_MS = 150 };
static const uint64_t NS_OF_MS = 1000 * 1000;

void tune_task_free(struct tune_task *task)
{
    free(task->listed);
    free(task);
}

int tune_begin(struct server *s, struct tune_task *task, struct error *e)
{
    struct tune *t = s->tune;

    if (t->n_tasks >= TASKS_MAX) {
        error_set(e, ERROR_LIMIT_EXCEEDED, "%u tunings wait already: ask again later", t->n_tasks);
        return error_detail_number(e, "limit", TASKS_MAX);
    }
    if (tune_start(s, e) < 0)
        return -1;
    t->n_tasks++;
    task->begin_ns = clock_now_ns();
    task->request.budget_ms = (uint32_t)s->config.tuning_budget_ms;
    if (task->waiting) {
        t->n_waiting++;
        task->request.until_ns = task->begin_ns + task->request.budget_ms * NS_OF_MS;
        task->answer_ns = task->request.until_ns + ANSWER_MS * NS_OF_MS;
    }
    pthread_mutex_lock(&t->lock);
    list_append(&t->queue, &task->link);
    pthread_cond_signal(&t->wanted);
    pthread_mutex_unlock(&t->lock);
    return 0;
}

/* Takes the waiter from the task; its user may ask for another tuning. */
static void tune_task_let_go(struct tune *t, struct tune_task *task)
{
    t->n_waiting -= task->waiting != NULL;
    if (task->account)
        task->account->tuning = false;
    task->waiting = NULL;
    task->account = NULL;
}

/* ---- those that have ended ---- */

static struct tune_task *take_done(struct tune *t)
{
    struct list *node;

    pthread_mutex_lock(&t->lock);
    node = list_pop(&t->done);
    pthread_mutex_unlock(&t->lock);
    return node ? list_entry(node, struct tune_task, link) : NULL;
}

/* Takes back the tasks that the measurer has done, and answers them. */
static void tune_tasks_end(struct server *s)
{
    struct tune *t = s->tune;
    struct tune_task *task;

    while ((task = take_done(t))) {
        t->n_tasks--;
        idle_done(s, task);
        if (task->waiting)
            tune_answer(task);
        tune_task_let_go(t, task);
        tune_task_free(task);
    }
}

/* ---- replies that are overdue ---- */

static bool is_overdue(const struct tune_task *task, uint64_t now_ns, uint64_t *next_ns)
{
    if (!task->waiting)
        return false;
    if (task->answer_ns <= now_ns)
        return true;
    if (task->answer_ns < *next_ns)
        *next_ns = task->answer_ns;
    return false;
}

/* Answers the current task when it is overdue. Its measurement goes on, but nobody waits for it any more. */
static void answer_current(struct tune *t, uint64_t now_ns, uint64_t *next_ns)
{
    struct tuning_result *listed = NULL;
    struct tune_task *task;

    pthread_mutex_lock(&t->lock);
    task = t->current && is_overdue(t->current, now_ns, next_ns) ? t->current : NULL;
    if (task) {
        listed = task->listed;
        task->listed = NULL;
    }
    pthread_mutex_unlock(&t->lock);
    if (!task)
        return;
    tune_answer_early(task, listed, true); /* the loop alone frees tasks */
    tune_task_let_go(t, task);
    free(listed);
}

/* The first in the queue that is overdue, which leaves it. */
static struct tune_task *take_overdue(struct tune *t, uint64_t now_ns, uint64_t *next_ns)
{
    struct tune_task *found = NULL;

    pthread_mutex_lock(&t->lock);
    list_for_each_safe (node, after, &t->queue) {
        struct tune_task *task = list_entry(node, struct tune_task, link);

        if (!found && is_overdue(task, now_ns, next_ns)) {
            list_remove(&task->link);
            found = task;
        }
    }
    pthread_mutex_unlock(&t->lock);
    return found;
}

/* Not to be begun for nobody, it is left to idle tuning. */
static void end_overdue(struct server *s, struct tune_task *task)
{
    s->tune->n_tasks--;
    tune_answer_early(task, NULL, false);
    idle_want(s, task);
    tune_task_let_go(s->tune, task);
    tune_task_free(task);
}

static void on_timer(uv_timer_t *timer)
{
    (void)timer; /* the turn that it makes is all */
}

static void tune_overdue_init(struct server *s)
{
    uv_timer_init(&s->loop, &s->tune->overdue);
}

static void tune_overdue_close(struct server *s)
{
    uv_close((uv_handle_t *)&s->tune->overdue, NULL);
}

/* Answers requests whose time is over, and makes sure that the loop turns at the next one's time. Called in every turn
 * of the loop. */
static void tune_answer_overdue(struct server *s)
{
    struct tune *t = s->tune;
    uint64_t next_ns = UINT64_MAX, now_ns;
    struct tune_task *task;

    if (!t->n_waiting)
        return;
    now_ns = clock_now_ns();
    answer_current(t, now_ns, &next_ns);
    while ((task = take_overdue(t, now_ns, &next_ns)))
        end_overdue(s, task);
    if (next_ns == UINT64_MAX || uv_is_closing((const uv_handle_t *)&t->overdue))
        return;
    uv_update_time(&s->loop);
    uv_timer_start(&t->overdue, on_timer, (next_ns - now_ns) / NS_OF_MS + 1, 0);
}

/* ---- cancelling ---- */

static void tune_cancel_tasks(struct tune *t, const struct connection *c)
{
    pthread_mutex_lock(&t->lock);
    list_for_each_safe (node, after, &t->queue) {
        struct tune_task *task = list_entry(node, struct tune_task, link);

        if (!c || (task->waiting && task->waiting->connection == c))
            atomic_store(&task->cancelled, true);
    }
    if (t->current && (!c || (t->current->waiting && t->current->waiting->connection == c)))
        atomic_store(&t->current->cancelled, true);
    pthread_cond_signal(&t->wanted);
    pthread_mutex_unlock(&t->lock);
}

/* ---- the room ---- */

/* Reads the choices of earlier daemons. */
static void read_store(struct server *s)
{
    struct store *store = store_open(s->config.code.directory, false);

    store_read(store, tuned_publish, s->tune);
    store_read_unfinished(store, unfinished_add, s->tune);
    store_close(store);
}

int tune_new(struct server *s, struct error *e)
{
    struct tune *t = calloc(1, sizeof(*t));

    if (!t)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to start");
    t->server = s;
    t->table_fd = -1;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wanted, NULL);
    list_init(&t->queue);
    list_init(&t->done);
    s->tune = t;
    if (tuning_table_new(&t->table, &t->table_fd, e) < 0)
        return -1;
    s->config.backend_config.tuning = t->table;
    s->config.backend_config.tuning_fd = t->table_fd;
    idle_init(s);
    tune_overdue_init(s);
    read_store(s);
    return 0;
}

static void end_measurer(struct tune *t)
{
    pthread_mutex_lock(&t->lock);
    t->ending = true;
    pthread_cond_signal(&t->wanted);
    pthread_mutex_unlock(&t->lock);
    for (unsigned i = 0; i < t->server->devices.count; i++) {
        struct backend_device *d = t->server->devices.all[i];

        if (d->backend->tune_stop)
            d->backend->tune_stop(d);
    }
}

void tune_stop(struct server *s)
{
    idle_close(s);
    tune_overdue_close(s);
    end_measurer(s->tune);
}

static void free_tasks(struct list *tasks)
{
    struct list *node;

    while ((node = list_pop(tasks)))
        tune_task_free(list_entry(node, struct tune_task, link));
}

void tune_free(struct server *s)
{
    struct tune *t = s->tune;

    if (!t)
        return;
    if (t->has_thread) {
        end_measurer(t);
        pthread_join(t->thread, NULL);
    }
    free_tasks(&t->queue);
    free_tasks(&t->done);
    tuning_table_free(t->table);
    if (t->table_fd >= 0)
        close(t->table_fd);
    pthread_cond_destroy(&t->wanted);
    pthread_mutex_destroy(&t->lock);
    free(t->seen);
    free(t->tuned);
    free(t->unfinished);
    free(t);
    s->tune = NULL;
}

bool tune_is_there(const struct server *s)
{
    for (unsigned i = 0; i < s->devices.count; i++)
        if (s->devices.all[i]->backend->tunes)
            return true;
    return false;
}

/* ---- the thread and the turns of the loop ---- */

/* The daemon's devices may be busy at any time between two turns; what matters to the measurer is the time after a
 * turn. */
static void publish(struct server *s)
{
    struct tune *t = s->tune;

    for (unsigned i = 0; i < s->devices.count; i++) {
        atomic_store_explicit(&t->load[i].running, exec_jobs_on(s, s->devices.all[i]), memory_order_relaxed);
        atomic_store_explicit(&t->load[i].begun, exec_jobs_begun_on(s, s->devices.all[i]), memory_order_relaxed);
    }
}

int tune_start(struct server *s, struct error *e)
{
    struct tune *t = s->tune;

    if (t->has_thread)
        return 0;
    publish(s); /* the first pause counts the jobs that begin from here on */
    if (pthread_create(&t->thread, NULL, measurer_run, t) != 0)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a thread that tunes");
    t->has_thread = true;
    return 0;
}

/* Starts the process early, so that the first tuning finds it ready. */
static void start_early(struct server *s)
{
    struct tune *t = s->tune;
    struct error ignored; /* the first tuning starts it, or says why not */

    t->was_turned = true;
    if (s->config.tuning_ready && tune_is_there(s))
        tune_start(s, &ignored);
}

void tune_step(struct server *s)
{
    struct tune *t = s->tune;

    if (!t->was_turned)
        start_early(s);
    if (t->has_thread)
        publish(s);
    idle_step(s);
    if (atomic_exchange_explicit(&t->news, false, memory_order_acquire))
        tune_tasks_end(s);
    tune_answer_overdue(s);
}

bool tune_is_busy(const struct server *s)
{
    return s->tune->n_tasks > 0;
}

void tune_cancel_all(struct server *s)
{
    tune_cancel_tasks(s->tune, NULL);
}

static void on_connection_end(struct connection *c)
{
    tune_cancel_tasks(c->server->tune, c);
}

const struct connection_part connection_tune_part = {.end = on_connection_end};
