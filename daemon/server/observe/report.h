/* Long answers: `stats`, `clients` and `metrics`. Each is built in pieces, in the turns of the connection that asked,
 * in a buffer of its own, and becomes a reply when it is whole. A user has one under way; a client that has not read
 * its replies gets none. What an answer tells is of the time of its pieces: a row is right in itself. Thread: loop. */
#ifndef KOPS_SERVER_REPORT_H
#define KOPS_SERVER_REPORT_H

#include "server/observe/metrics.h"
#include "server/types.h"

enum { MAPPING_ROW_PIDS = 16 };

/* A mapping as stats tells it: copied, since it may go while the answer is built. */
struct mapping_row {
    const struct mapping *mapping; /* only to find it again while rows are gathered */
    const struct backend_device *device;
    enum backend_memory_kind kind;
    bool open;
    uint64_t size;
    double idle_s;
    unsigned references, n_pids;
    pid_t pids[MAPPING_ROW_PIDS];
};

struct report {
    struct request *request;
    bool (*step)(struct report *report); /* builds the next piece; true: that was the last one */
    struct rpc_output out;               /* the result */
    bool failed;                         /* … or there was no memory for it */
    struct mapping_row *rows;            /* stats; owned */
    uint32_t n_rows, next_row;
    struct list walk; /* clients: in the server's walks … */
    struct list *at;  /* … the connection that is next … */
    size_t count_at;  /* … and where the number of rows is to be written */
    uint32_t n_clients;
    struct metrics metrics; /* metrics */
    unsigned next_metric;
};

/* Answers in the connection's turns. The request's watch.link, or barrier.link, is free. */
void report_enqueue(struct request *r);
/* Builds the next pieces of what the connection has asked for, until its time is over. */
void reports_step(struct connection *c);
/* The connection has ended. */
void reports_abandon(struct connection *c);
/* A connection is about to leave the server's list. */
void reports_pass_by(struct connection *c);

/* The first pieces. */
bool stats_begin(struct report *report);
bool clients_begin(struct report *report);
bool metrics_begin(struct report *report);

#endif
