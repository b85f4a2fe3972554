/* Runs jobs: streams are queues, lanes are threads that take turns between streams.
 *
 * A job that takes a few µs runs at once on the loop thread if nothing is before it on its stream; a longer one that a
 * single thread does best goes to the light lane; the rest goes to the heavy lane, whose pool has all threads. So a
 * small job does not wait for another client's large one. A lane serves the owners of jobs in turn, by the time that
 * they took, and the streams of an owner in turn; when others wait it changes between the steps and the executions of a
 * job. Both lanes' threads start with their first job and block while there is none.
 *
 * An owner with jobs has a pair of lanes of its own, so that the system's scheduler shares the processors between
 * owners, also while a kernel goes on for long. The pairs are as many as owners had jobs at one time; beyond
 * EXECUTOR_PAIRS owners share them.
 *
 * Threads: all functions are the loop's. What lanes share with it lies under `lock`. */
#ifndef KOPS_HOST_EXECUTOR_H
#define KOPS_HOST_EXECUTOR_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "execute.h"
#include "owners.h"
#include "util/list.h"

struct host_device;
struct executor;

struct lane {
    struct executor *executor;
    struct seat seat;
    bool heavy;              /* large work, on all processors; else small work, by one thread */
    uint64_t (*clock)(void); /* what owners are charged by */
    pthread_t thread;
    bool started;
    pthread_cond_t wake;
    struct owners owners;    /* of streams that are ready, by their `link` */
    atomic_uint ready_count; /* read without the lock at the end of a time slice */
};

enum { EXECUTOR_PAIRS = 8 };

struct lane_pair {
    struct lane light, heavy;
    uint64_t owner;
    unsigned streams; /* that wait or run here; 0: free for any owner */
};

struct executor {
    struct host_device *device;
    struct seat inline_seat;
    struct lane_pair pairs[EXECUTOR_PAIRS];
    unsigned n_pairs; /* that were opened, at least one */
    unsigned threads; /* of a heavy lane */
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
