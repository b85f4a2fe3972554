/* Runs jobs: streams are queues, lanes are threads that take turns between streams.
 *
 * A job that takes a few µs runs at once on the loop thread if nothing is before it on its stream; a longer one that a
 * single thread does best goes to the light lane; the rest goes to the heavy lane, whose pool has all threads. So a
 * small job does not wait for another client's large one. A lane serves the streams whose first job is its own in
 * turn, and changes between executions of a repeated job when others wait. Both lanes' threads start with their first
 * job and block while there is none.
 *
 * Threads: all functions are the loop's. What lanes share with it lies under `lock`. */
#ifndef KOPS_HOST_EXECUTOR_H
#define KOPS_HOST_EXECUTOR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "execute.h"
#include "util/list.h"

struct host_device;
struct executor;

struct lane {
    struct executor *executor;
    struct seat seat;
    const char *thread_name;
    pthread_t thread;
    bool started;
    pthread_cond_t wake;
    struct list ready;       /* streams, by their `link` */
    atomic_uint ready_count; /* read without the lock at the end of a time slice */
};

struct executor {
    struct host_device *device;
    struct seat inline_seat;
    struct lane light, heavy;
    pthread_mutex_t lock;
    struct list finished; /* jobs, by their `link`, until poll() */
    bool stop;
    unsigned unfinished; /* the loop's own: submitted, done() not called */
};

/* Errors: out_of_memory. */
int executor_open(struct executor *executor, struct host_device *device, unsigned threads, struct error *e);
/* Joins the lanes; no job is left. Also after executor_open() failed. */
void executor_close(struct executor *executor);

int executor_stream_new(struct executor *executor, struct backend_stream **ret_stream, struct error *e);
void executor_stream_free(struct backend_stream *stream);
void executor_submit(struct backend_stream *stream, struct backend_job *job);
unsigned executor_poll(struct executor *executor);

#endif
