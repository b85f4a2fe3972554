/* A pool of driver events, so that a job in steady state makes and destroys none. Thread: any. */
#ifndef KOPS_CUDA_EVENTS_H
#define KOPS_CUDA_EVENTS_H

#include <cuda.h>
#include <pthread.h>
#include <stddef.h>

#include "util/error.h"

struct cuda_device;

/* A thread can sleep until an event of the kinds "end" has happened. */
enum cuda_event_kind { EVENT_TIMED, EVENT_TIMED_END, EVENT_PLAIN_END, EVENT_KINDS };

struct cuda_events {
    pthread_mutex_t lock;
    struct cuda_event_stack {
        CUevent *items;
        size_t count, capacity; /* capacity ≥ all events of the kind, so that a return never allocates */
        size_t made;
    } free[EVENT_KINDS];
};

void cuda_events_init(struct cuda_events *pool);
/* Destroys the free events. All must have been returned, except on a broken context. */
void cuda_events_destroy(struct cuda_device *d, struct cuda_events *pool);

/* An event that nothing else uses, recorded on the stream. */
int cuda_event_mark(struct cuda_device *d, enum cuda_event_kind kind, CUstream stream, CUevent *ret_event,
                    struct error *e);

/* NULL is allowed. */
void cuda_event_return(struct cuda_device *d, enum cuda_event_kind kind, CUevent event);

/* Microseconds between two events of the device that have happened; NAN where either is NULL or the driver has no
 * answer. */
double cuda_event_us(struct cuda_device *d, CUevent from, CUevent to);

#endif
