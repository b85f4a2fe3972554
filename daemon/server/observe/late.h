/* Times of runs that come after their replies, and the statistics that they belong to. Those of the last
 * LATE_MAX runs are expected; what is not told by then is lost. Thread: loop. */
#ifndef KOPS_SERVER_OBSERVE_LATE_H
#define KOPS_SERVER_OBSERVE_LATE_H

#include "server/observe/latency.h"

enum { LATE_MAX = 1024 };

/* The time of a run that ended with timed_later. */
struct late {
    uint64_t token;        /* 0: none */
    uint64_t row;          /* row of the profile; 0: none */
    struct connection *of; /* NULL: it is gone */
    struct latency_op *op; /* or NULL */
};

/* The run has ended. `row`: of the profile, or 0. */
void late_expect(struct connection *c, const struct run *run, uint64_t row);
/* A late time is there: the server's part of host->timed(). */
void late_timed(struct server *s, uint64_t token, const struct backend_times *times);
/* The connection goes. */
void late_forget(const struct connection *c);

#endif
