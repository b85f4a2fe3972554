#include "server/peer/barrier.h"

#include "server/peer/back_pressure.h"

/* Returns the first barrier, if no earlier run is unfinished. */
static struct request *ready_barrier(const struct connection *c)
{
    const struct list *barrier = list_first(&c->barriers), *unfinished;
    struct request *r;

    if (!barrier)
        return NULL;
    r = list_entry(barrier, struct request, queue_link);
    unfinished = c->closed ? NULL : list_first(&c->unfinished);
    return unfinished && list_entry(unfinished, struct request, order_link)->sequence < r->sequence ? NULL : r;
}

/* A client that has not read its replies gets no more of them, unless the shutdown no longer waits for it. */
static bool may_answer(const struct connection *c)
{
    return !connection_is_stuck(c) || c->server->admission.cancelled;
}

void barriers_step(struct connection *c)
{
    struct request *r = ready_barrier(c);

    if (!r || !may_answer(c))
        return;
    list_remove(&r->queue_link);
    r->ready(r);
}

void barriers_advance(struct connection *c)
{
    if (list_empty(&c->barriers))
        return;
    if (!c->closed && ready_barrier(c) && may_answer(c))
        connection_mark_dirty(c);
    while (c->closed && !list_empty(&c->barriers)) {
        struct request *r = ready_barrier(c);

        list_remove(&r->queue_link);
        request_abandon(r);
    }
}

void barrier_enqueue(struct request *r, void (*ready)(struct request *r))
{
    r->ready = ready;
    list_append(&r->connection->barriers, &r->queue_link);
    barriers_advance(r->connection);
}
