/* Traces: the times of every run and compilation, recorded for the clients that ask. Each connection may have one
 * trace. Its events wait in a ring of their own until they are read; without room they are dropped, and counted. While
 * nobody traces, a run costs one look at an empty list. Thread: loop. */
#ifndef KOPS_SERVER_OBSERVE_TRACE_H
#define KOPS_SERVER_OBSERVE_TRACE_H

#include "server/exec/run.h"

struct trace;

/* Whether a trace records the user's work. */
bool trace_records(const struct server *s, uid_t uid);

/* A run has ended. */
void trace_run(const struct request *r, const struct run *run, uint64_t now_ns);
/* A compilation has ended. `started_ns` 0: the code was cached. */
void trace_compile(const struct request *r, const char *name, uint64_t started_ns, bool failed);

/* The times of a run that ended with timed_later are there. */
void trace_timed(struct server *s, uint64_t token, const struct backend_times *times);

/* The connection has ended. */
void trace_leave(struct connection *c);

#endif
