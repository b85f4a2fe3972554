/* Domains, and threads that wait for the executor of one. */
#include <stdlib.h>

#include "executor/front.h"
#include "util/clock.h"

enum { DOMAIN_FAILURES_MAX = 2 /* starts for a domain in a row, before its jobs fail */ };

/* ---- domains ---- */

static struct front_domain *find_in(struct list *domains, uint64_t key)
{
    list_for_each_safe (node, after, domains) {
        struct front_domain *d = list_entry(node, struct front_domain, link);

        if (d->key == key)
            return d;
    }
    return NULL;
}

struct front_domain *front_domain_get(struct front *f, uint64_t key)
{
    struct front_domain *d = find_in(&f->domains, key);

    if (!d)
        d = find_in(&f->new_domains, key);
    if (d || !(d = calloc(1, sizeof(*d))))
        return d;
    d->key = key;
    for (unsigned i = 0; i < BACKEND_MAX_DEVICES; i++)
        list_init(&d->turns[i].blocked);
    list_init(&d->work);
    list_append(&f->new_domains, &d->link);
    atomic_store(&f->news, true);
    return d;
}

void front_domains_take(struct front *f)
{
    struct list *node;

    pthread_mutex_lock(&f->lock);
    while ((node = list_pop(&f->new_domains)))
        list_append(&f->domains, node);
    pthread_mutex_unlock(&f->lock);
}

/* ---- for threads of the pool ---- */

static bool serves(const struct executor *x)
{
    return x && x->state == PROCESS_SERVING && !front_is_lost(x);
}

bool front_is_refused(const struct front *f, const struct front_domain *d, struct error *e)
{
    if (f->lost.code != ERROR_NONE)
        *e = f->lost;
    else if (d->key != DOMAIN_COMMON && d->failures >= DOMAIN_FAILURES_MAX && clock_now_ns() < d->retry_ns)
        *e = d->error;
    else if (f->closing || (f->ending && d->key != DOMAIN_COMMON))
        error_set(e, ERROR_DEVICE_LOST, "the daemon ends");
    else
        return false;
    return true;
}

struct executor *front_executor_of(struct front *f, uint64_t key, struct error *e)
{
    const struct executor *keeper = front_work_executor(); /* which waits for no other one */
    struct front_domain *d;
    struct executor *x = NULL;

    pthread_mutex_lock(&f->lock);
    d = front_domain_get(f, key);
    if (!d) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a domain");
        goto out;
    }
    d->codes++; /* keeps it */
    while (!keeper && !serves(d->executor) && !front_is_refused(f, d, e)) {
        d->wanted = true;
        front_tell(f);
        pthread_cond_wait(&f->changed, &f->lock);
    }
    d->codes--;
    if (serves(d->executor) && (!keeper || d->executor == keeper)) {
        x = d->executor;
        x->users++;
    } else if (keeper) {
        error_set(e, ERROR_DEVICE_LOST, "the executor of the GPU has ended");
    }

out:
    pthread_mutex_unlock(&f->lock);
    return x;
}

/* ---- for the loop ---- */

void front_domain_lose(struct executor *x)
{
    struct front *f = x->front;
    struct front_domain *d = x->domain;

    if (!d || d->executor != x)
        return;
    pthread_mutex_lock(&f->lock);
    d->executor = NULL;
    d->leaving_ns = 0;
    x->domain = NULL;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->lock);
}
