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

#include "backend/backend.h"

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

#endif
