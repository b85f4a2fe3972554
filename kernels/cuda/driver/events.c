/* Owns the free events of one device. */
#include "events.h"

#include <math.h>
#include <stdlib.h>

#include "device.h"

static const unsigned flags[EVENT_KINDS] = {
    [EVENT_TIMED] = CU_EVENT_DEFAULT,
    [EVENT_TIMED_END] = CU_EVENT_BLOCKING_SYNC,
    [EVENT_PLAIN_END] = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING,
};

void cuda_events_init(struct cuda_events *pool)
{
    *pool = (struct cuda_events){0};
    pthread_mutex_init(&pool->lock, NULL);
}

void cuda_events_destroy(struct cuda_device *d, struct cuda_events *pool)
{
    for (unsigned kind = 0; kind < EVENT_KINDS; kind++) {
        struct cuda_event_stack *stack = &pool->free[kind];

        while (stack->count > 0)
            cuda_on(d)->EventDestroy(stack->items[--stack->count]);
        free(stack->items);
    }
    pthread_mutex_destroy(&pool->lock);
}

/* Room for one more event of this kind to come back. */
static int grow(struct cuda_event_stack *stack, struct error *e)
{
    size_t capacity = stack->capacity ? 2 * stack->capacity : 64;
    CUevent *items;

    if (stack->made < stack->capacity)
        return 0;
    items = realloc(stack->items, capacity * sizeof(*items));
    if (!items)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for %zu events", capacity);
    stack->items = items;
    stack->capacity = capacity;
    return 0;
}

static int take(struct cuda_device *d, enum cuda_event_kind kind, CUevent *ret_event, struct error *e)
{
    struct cuda_event_stack *stack = &d->events.free[kind];
    int r = 0;

    pthread_mutex_lock(&d->events.lock);
    if (stack->count > 0) {
        *ret_event = stack->items[--stack->count];
    } else {
        r = grow(stack, e);
        if (r == 0)
            r = CUDA_CALL(d, e, EventCreate, ret_event, flags[kind]);
        if (r == 0)
            stack->made++;
    }
    pthread_mutex_unlock(&d->events.lock);
    return r;
}

int cuda_event_mark(struct cuda_device *d, enum cuda_event_kind kind, CUstream stream, CUevent *ret_event,
                    struct error *e)
{
    CUevent event;

    if (take(d, kind, &event, e) < 0)
        return -1;
    if (CUDA_CALL(d, e, EventRecord, event, stream) < 0) {
        cuda_event_return(d, kind, event);
        return -1;
    }
    *ret_event = event;
    return 0;
}

void cuda_event_return(struct cuda_device *d, enum cuda_event_kind kind, CUevent event)
{
    struct cuda_event_stack *stack = &d->events.free[kind];

    if (!event)
        return;
    pthread_mutex_lock(&d->events.lock);
    stack->items[stack->count++] = event;
    pthread_mutex_unlock(&d->events.lock);
}

double cuda_event_us(struct cuda_device *d, CUevent from, CUevent to)
{
    float ms;

    if (!from || !to || cuda_on(d)->EventElapsedTime(&ms, from, to) != CUDA_SUCCESS)
        return NAN;
    return (double)ms * 1e3;
}
