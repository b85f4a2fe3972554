#include "server/tune/tune.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "server/exec/exec.h"
#include "server/peer/connection.h"
#include "server/tune/room.h"
#include "util/log.h"

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

/* ---- tasks ---- */

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
