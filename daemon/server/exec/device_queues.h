/* Device queues: free ones are kept for the next stream, and a stream of ordered work chooses between two. Thread:
 * loop. */
#ifndef KOPS_SERVER_EXEC_DEVICE_QUEUES_H
#define KOPS_SERVER_EXEC_DEVICE_QUEUES_H

#include "server/base/shared.h"

struct device_queue {
    struct list link; /* while free */
    struct backend_device *device;
    enum backend_priority priority;
    unsigned number; /* among the device's queues, in the order made */
    struct backend_stream *stream;
};

/* Finds out which of two device queues serves a stream of ordered work better. On an H200 under MPS a link took 10.7 us
 * with one and 15 us with the other; which is which depends on the client's stream. */
struct queue_probe {
    enum { PROBE_FIRST, PROBE_OTHER, PROBE_SETTLED } phase;
    unsigned seen;                /* ordered runs in this phase */
    uint64_t last_ns, best_ns[2]; /* begin of the last run; shortest time from one run to the next */
    struct device_queue *spare;   /* the first one, while the other is tried */
};

struct stream;
struct run;

/* Parity of a queue's number: even (0), odd (1), or either. */
enum { PARITY_ANY = -1 };

/* Returns a free queue, or a new one. NULL: *e. */
struct device_queue *device_queue_take(struct server *s, struct backend_device *device, enum backend_priority priority,
                                       int parity, struct error *e);
/* Gives a queue without jobs back. NULL is allowed. */
void device_queue_give(struct server *s, struct device_queue *p);
/* Frees all queues at shutdown, when every one has been given back. */
void device_queues_free(struct server *s);

/* An ordered run is about to begin. Notes the time since the last one, and may give the stream another queue. Harmless
 * for other runs. */
void queue_probe_note(struct stream *stream, const struct run *run);
/* The stream ends: gives back the queue that was put aside. */
void queue_probe_end(struct stream *stream);

#endif
