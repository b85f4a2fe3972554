/* Work for a domain that may take as long as the domain's kernels run: its keeper does it, so that it costs no thread
 * that others need. */
#include <stdlib.h>

#include "executor/front.h"

struct given {
    struct front_task task; /* first */
    struct list link;       /* in front_domain.work, or in front.worked */
    struct front_domain *domain;
    struct backend_work *work;
    unsigned tries;
    bool refused; /* why */
    struct error why;
};

/* The executor whose keeper this thread is: it waits for no other one. */
static _Thread_local struct executor *own;

struct executor *front_work_executor(void)
{
    return own;
}

/* Once more where the executor was lost meanwhile. */
static void run(struct executor *x, struct front_task *task)
{
    struct given *g = (struct given *)(void *)task;
    struct front *f = x->front;
    bool again;
    int r;

    own = x;
    r = g->work->run(g->work);
    own = NULL;
    again = r < 0 && front_is_lost(x) && ++g->tries < FRONT_TRIES;
    pthread_mutex_lock(&f->lock);
    g->domain->n_given--;
    list_append(again ? &g->domain->work : &f->worked, &g->link);
    pthread_mutex_unlock(&f->lock);
    front_tell(f);
}

int front_work(struct backend_device *device, uint64_t key, struct backend_work *work, struct error *e)
{
    struct front *f = front_device(device)->front;
    struct given *g = calloc(1, sizeof(*g));

    pthread_mutex_lock(&f->lock);
    if (g)
        g->domain = front_domain_get(f, key);
    if (g && g->domain) {
        g->task.run = run;
        g->work = work;
        g->domain->n_work++;
        list_append(&g->domain->work, &g->link);
    }
    pthread_mutex_unlock(&f->lock);
    front_tell(f);
    if (g && g->domain)
        return 0;
    free(g);
    return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for work of a domain");
}

void front_work_give(struct front_domain *d)
{
    struct executor *x = d->executor;
    struct list *node;

    if (!x || !x->ready || front_is_lost(x))
        return;
    pthread_mutex_lock(&x->front->lock);
    while ((node = list_pop(&d->work))) {
        struct given *g = list_entry(node, struct given, link);

        if (!front_task_add(x, &g->task)) { /* the executor is about to end: the next one gets it */
            list_append(&d->work, node);
            break;
        }
        d->n_given++;
    }
    pthread_mutex_unlock(&x->front->lock);
}

void front_work_refuse(struct front *f, struct front_domain *d, const struct error *why)
{
    struct list *node;

    pthread_mutex_lock(&f->lock);
    while ((node = list_pop(&d->work))) {
        struct given *g = list_entry(node, struct given, link);

        g->refused = true;
        g->why = *why;
        list_append(&f->worked, &g->link);
    }
    pthread_mutex_unlock(&f->lock);
}

void front_work_done(struct front *f)
{
    struct list worked, *node;

    pthread_mutex_lock(&f->lock);
    list_take(&worked, &f->worked);
    list_for_each_safe (one, after, &worked) {
        list_entry(one, struct given, link)->domain->n_work--;
    }
    pthread_mutex_unlock(&f->lock);
    while ((node = list_pop(&worked))) {
        struct given *g = list_entry(node, struct given, link);

        g->work->done(g->work, g->refused ? &g->why : NULL);
        free(g);
    }
}
