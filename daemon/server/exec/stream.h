/* The ordered queue of one stream number of a connection. Thread: loop. */
#ifndef KOPS_SERVER_EXEC_STREAM_H
#define KOPS_SERVER_EXEC_STREAM_H

#include "server/exec/device_queues.h"
#include "server/peer/request.h"

struct run;

/* The queue of one stream number of a connection. Runs enter in the order sent; the first that was not given goes on
 * when its mappings are open, when its timeline allows, and when the device and its preparation do. */
struct stream {
    struct connection *connection;
    unsigned number;
    struct list given,
        queue; /* struct run by queue_link: those that a device has or is to have, and those behind them */
    unsigned submitted, preparing;
    unsigned repeating;             /* submitted runs of several executions */
    struct backend_device *device;  /* of what is submitted */
    enum backend_priority priority; /* of what is submitted */
    uint64_t last_ready, last_done; /* the highest timeline values so far */
    uint64_t owed_ready;    /* what runs that ended without it should have waited for, and those behind them do */
    struct list yield_link; /* in server->yielding */
    struct list held_link;  /* in its user's held */
    unsigned looked;        /* the turn in which it was looked at last */
    uint64_t held_since_ns, held_for;                                   /* while it is there: since when, which value */
    struct device_queue *backends[BACKEND_MAX_DEVICES][PRIORITY_COUNT]; /* made at first use */
    struct queue_probe queue_probe;
    uint64_t ended_ns; /* when the last of its runs ended */
    uint64_t watched;  /* what hang.c saw first in the queue: its sequence, plus one */
    uint32_t watched_ended;
    unsigned watched_ticks;
    bool still;
};

/* The connection's stream of that number, made at its first use; NULL: no memory. */
struct stream *stream_get(struct connection *c, uint64_t number, struct error *e);
/* Puts a run at the end of its stream. */
void stream_enqueue(struct stream *stream, struct request *r);
/* Lets the stream's next runs go on as far as they can. */
void stream_advance(struct stream *stream);
void stream_remove(struct request *r);
/* Gives the device queues back to the server's pool. NULL is allowed; returns NULL. */
struct stream *stream_free(struct stream *stream);
/* Lets low work go on where its device has no other any more. */
void streams_end_yielding(struct server *s);

#endif
