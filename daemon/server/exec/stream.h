/* Streams: the ordered queue of one stream number of a connection; and the device queues that they use. Free queues are
 * kept for the next stream, and a stream of ordered work chooses between two. Thread: loop. */
#ifndef KOPS_SERVER_EXEC_STREAM_H
#define KOPS_SERVER_EXEC_STREAM_H

#include "server/base/shared.h"
#include "server/peer/request.h"

/* ---- device queues ---- */

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

/* Frees all queues at shutdown, when every one has been given back. */
void device_queues_free(struct server *s);

/* ---- streams ---- */

/* Runs enter in the order sent. The first queued run goes on when its mappings are open, its ready word is reached, and
 * the device allows it. */
struct stream {
    struct connection *connection;
    unsigned number;
    struct list given, queue; /* struct run by queue_link: those that a device has; behind those */
    unsigned submitted;
    unsigned repeating;               /* submitted runs of several executions */
    struct backend_device *device;    /* device of the submitted runs */
    enum backend_priority priority;   /* priority of the submitted runs */
    uint64_t last_ready, last_done;   /* the highest timeline values so far */
    uint64_t owed_ready;              /* a ready value that an ended run did not wait for; the next run does */
    struct list yield_link;           /* in the room's yielding */
    struct list held_link;            /* in the user's held */
    unsigned looked;                  /* number of the last look at it */
    uint64_t held_since_ns, held_for; /* while held: begin of the hold, and the value that it waits for */
    struct device_queue *backends[BACKEND_MAX_DEVICES][PRIORITY_COUNT]; /* made at first use */
    struct queue_probe queue_probe;
    uint64_t ended_ns;
    uint64_t watched; /* the device watchdog saw this run first: its sequence plus one */
    uint32_t watched_ended;
    unsigned watched_ticks;
    bool still; /* the first run has not progressed since the last look */
};

/* Returns the connection's stream of that number, made at first use. NULL: no memory. */
struct stream *stream_get(struct connection *c, uint64_t number, struct error *e);
/* Puts a run at the end of the stream. */
void stream_enqueue(struct stream *stream, struct run *run);
/* Lets the stream's queued runs go on as far as they can. */
void stream_advance(struct stream *stream);
void stream_remove(struct run *run);
/* The device gives the run back, which is the first of the queue now. */
void stream_take_back(struct run *run);
/* Gives the device queues back to the server's pool. NULL is allowed; returns NULL. */
struct stream *stream_free(struct stream *stream);
/* Lets runs of low priority go on whose device has no other work any more. Called while streams yield. */
void streams_end_yielding(struct server *s);

#endif
