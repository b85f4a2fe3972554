#include "server/exec/device_queues.h"

#include <stdlib.h>

#include "server/exec/room.h"

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
