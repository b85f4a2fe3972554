/* The tasks: their way to the measurer and back, and the replies to those who wait for them. A reply comes in time
 * whatever the measurer does: a process with a context to be made, a library to be loaded, or other users' tunings may
 * take longer. Thread: loop. */
#include <stdlib.h>

#include "server/tune/room.h"
#include "util/clock.h"

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

void tune_tasks_end(struct server *s)
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

void tune_overdue_init(struct server *s)
{
    uv_timer_init(&s->loop, &s->tune->overdue);
}

void tune_overdue_close(struct server *s)
{
    uv_close((uv_handle_t *)&s->tune->overdue, NULL);
}

void tune_answer_overdue(struct server *s)
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

void tune_cancel_tasks(struct tune *t, const struct connection *c)
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
