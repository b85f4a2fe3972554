#include "server/exec/device_queues.h"

#include <stdlib.h>

#include "server/exec/room.h"
#include "util/clock.h"

static struct device_queue *find_free(struct list *pool, int parity)
{
    list_for_each_safe (node, after, pool) {
        struct device_queue *p = list_entry(node, struct device_queue, link);

        if (parity == PARITY_ANY || (int)(p->number % 2) == parity) {
            list_remove(&p->link);
            return p;
        }
    }
    return NULL;
}

static struct device_queue *make(struct server *s, struct backend_device *device, enum backend_priority priority,
                                 struct error *e)
{
    struct device_queue *p = calloc(1, sizeof(*p));

    if (!p) {
        error_set(e, ERROR_OUT_OF_MEMORY, "no memory for a stream");
        return NULL;
    }
    list_init(&p->link);
    p->device = device;
    p->priority = priority;
    if (device->backend->stream_new(device, priority, &p->stream, e) < 0) {
        free(p);
        return NULL;
    }
    p->number = s->exec->queues_made[device->index]++;
    return p;
}

struct device_queue *device_queue_take(struct server *s, struct backend_device *device, enum backend_priority priority,
                                       int parity, struct error *e)
{
    struct device_queue *p = find_free(&s->exec->free_queues[device->index][priority], parity), *wrong;

    if (p)
        return p;
    p = make(s, device, priority, e);
    if (!p || parity == PARITY_ANY || (int)(p->number % 2) == parity)
        return p;
    wrong = p;
    p = make(s, device, priority, e);
    device_queue_give(s, wrong);
    return p;
}

void device_queue_give(struct server *s, struct device_queue *p)
{
    if (p)
        list_append(&s->exec->free_queues[p->device->index][p->priority], &p->link);
}

void device_queues_free(struct server *s)
{
    for (unsigned i = 0; i < s->devices.count; i++)
        for (unsigned j = 0; j < PRIORITY_COUNT; j++)
            list_for_each_safe (node, after, &s->exec->free_queues[i][j]) {
                struct device_queue *p = list_entry(node, struct device_queue, link);

                list_remove(node);
                s->devices.all[i]->backend->stream_free(p->stream);
                free(p);
            }
}

/* ---- queue probe ---- */

enum { TRIED = 64, /* ops with each queue */ BETTER_BY_PERCENT = 10 };

static struct device_queue **queue_of(struct stream *stream, const struct run *run)
{
    return &stream->backends[run->device->index][run->priority];
}

/* Gives the stream another queue, and puts the present one aside. */
static void try_other(struct stream *stream, const struct run *run)
{
    struct device_queue **at = queue_of(stream, run), *other;
    struct queue_probe *p = &stream->queue_probe;
    struct error ignored;

    p->phase = PROBE_SETTLED;
    other = device_queue_take(stream->connection->server, run->device, run->priority, !((*at)->number % 2), &ignored);
    if (!other)
        return;
    p->phase = PROBE_OTHER;
    p->spare = *at;
    *at = other;
}

static void settle(struct stream *stream, const struct run *run)
{
    struct device_queue **at = queue_of(stream, run), *worse = *at;
    struct queue_probe *p = &stream->queue_probe;

    p->phase = PROBE_SETTLED;
    if ((*at)->device != p->spare->device || (*at)->priority != p->spare->priority)
        return; /* the client went elsewhere meanwhile */
    if (p->best_ns[1] * 100 < p->best_ns[0] * (100 - BETTER_BY_PERCENT))
        worse = p->spare;
    else
        *at = p->spare;
    p->spare = NULL;
    device_queue_give(stream->connection->server, worse);
}

void queue_probe_note(struct stream *stream, const struct run *run)
{
    struct queue_probe *p = &stream->queue_probe;
    uint64_t now, distance;

    /* Work on two queues has no order, so only a stream without work on the device may change. */
    if (p->phase == PROBE_SETTLED || !run->ready || stream->submitted)
        return;
    now = clock_now_ns();
    distance = now - p->last_ns;
    p->last_ns = now;
    if (p->seen++ == 0)
        p->best_ns[p->phase] = UINT64_MAX; /* an op before the change says nothing of this queue */
    else if (distance < p->best_ns[p->phase])
        p->best_ns[p->phase] = distance;
    if (p->seen < TRIED)
        return;
    p->seen = 0;
    if (p->phase == PROBE_FIRST)
        try_other(stream, run);
    else
        settle(stream, run);
}

void queue_probe_end(struct stream *stream)
{
    device_queue_give(stream->connection->server, stream->queue_probe.spare);
    stream->queue_probe.spare = NULL;
}
