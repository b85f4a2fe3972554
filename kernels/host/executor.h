/* Runs jobs: streams are queues, and workers are threads that serve streams in turn.
 *
 * A job of a few µs runs at once on the loop thread, if its stream has no job before it. A longer job that one thread
 * runs best goes to a light worker. Other jobs go to a heavy worker, whose pool has all threads. So a small job does
 * not wait for another client's large job. A worker serves owners by the time that their jobs took, and the streams of
 * an owner in turn. If other streams wait, a worker changes streams between steps and executions of a job. Workers
 * start with their first job, and block while there is none.
 *
 * An owner with jobs has its own pair of a light and a heavy worker, so that the system's scheduler shares the
 * processors between owners, even during long kernels. There are as many pairs as owners had jobs at one time. More
 * than EXECUTOR_PAIRS owners share pairs.
 *
 * Threads: the loop calls all functions. A lock guards the state that workers share with the loop. */
#ifndef KOPS_HOST_EXECUTOR_H
#define KOPS_HOST_EXECUTOR_H

#include <stdint.h>

#include "backend/backend.h"
#include "util/list.h"

struct executor;
struct host_device;

/* Errors: out_of_memory, limit_exceeded. */
int executor_new(struct host_device *device, unsigned threads, struct executor **ret_executor, struct error *e);
/* Joins the workers. Needs that no job is left. NULL is allowed; returns NULL. */
struct executor *executor_free(struct executor *x);

int executor_stream_new(struct executor *x, struct backend_stream **ret_stream, struct error *e);
void executor_stream_free(struct backend_stream *stream);
bool executor_submit(struct backend_stream *stream, struct backend_job *job);
unsigned executor_poll(struct executor *x);

/* The order in which a worker serves streams: deficit round-robin over owners by measured time, and round-robin over an
 * owner's streams. An owner that was idle and has credit left comes next.
 *
 * Owners are numbers, looked up by a hash: two owners with equal hashes share the time of one. Owns nothing. Thread:
 * any that holds the executor's lock. */

enum { OWNERS_MAX = 1024, OWNERS_QUANTUM_NS = 500 * 1000, OWNERS_DEBT_MAX_NS = 200 * 1000 * 1000 };

struct owner {
    struct list link;  /* in the owners' list while a stream of this owner is ready */
    struct list ready; /* ready streams, the next first */
    int64_t credit_ns;
};

struct owners {
    struct list list; /* owners with ready streams, the next first */
    struct owner all[OWNERS_MAX];
};

void owners_init(struct owners *owners);
struct owner *owners_get(struct owners *owners, uint64_t number);

/* Adds a stream that is ready, behind the owner's other ready streams. */
void owners_add(struct owners *owners, struct owner *owner, struct list *node);
/* Takes the next stream and finds its owner; NULL: none is ready. */
struct list *owners_next(struct owners *owners, struct owner **ret_owner);
void owners_charge(struct owner *owner, uint64_t ns);

#endif
