/* Runs jobs: streams are queues, workers are threads that take turns between streams.
 *
 * A job of a few µs runs at once on the loop thread when its stream has no job before it. A longer job that one thread
 * does best goes to a light worker. Any other job goes to a heavy worker, whose pool has all threads. So a small job
 * does not wait for another client's large one. A worker serves the owners of jobs in turn, by the time that they took,
 * and the streams of an owner in turn. When other streams wait, it changes between the steps and the executions of a
 * job. Workers start with their first job, and block while there is none.
 *
 * An owner with jobs has a light and a heavy worker of its own, so that the system's scheduler shares the processors
 * between owners, also while a kernel goes on for long. There are as many pairs as owners had jobs at one time; beyond
 * EXECUTOR_PAIRS owners share them.
 *
 * Threads: the loop calls all functions. A lock guards the state that workers share with it. */
#ifndef KOPS_HOST_EXECUTOR_H
#define KOPS_HOST_EXECUTOR_H

#include "backend/backend.h"

struct executor;
struct host_device;

/* Errors: out_of_memory, limit_exceeded. */
int executor_new(struct host_device *device, unsigned threads, struct executor **ret_executor, struct error *e);
/* Joins the workers; no job is left. NULL is allowed; returns NULL. */
struct executor *executor_free(struct executor *x);

int executor_stream_new(struct executor *x, struct backend_stream **ret_stream, struct error *e);
void executor_stream_free(struct backend_stream *stream);
void executor_submit(struct backend_stream *stream, struct backend_job *job);
unsigned executor_poll(struct executor *x);

#endif
