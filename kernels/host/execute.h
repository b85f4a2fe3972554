/* Executes jobs step by step, under the SIGBUS guard. Thread: the owner of the context. */
#ifndef KOPS_HOST_EXECUTE_H
#define KOPS_HOST_EXECUTE_H

#include <stdatomic.h>

#include "backend/backend.h"
#include "guard.h"
#include "kernels.h"
#include "pool.h"

struct host_device;

/* A thread needs a context of its own to execute jobs. */
struct thread_context {
    struct guard *guard;
    struct pool *pool;
};

/* How a step is executed; equal for all repeats. */
struct execution {
    const struct kernels *kernels;
    const char *variant;
    /* gemm, see gemm_way.h */
    unsigned way;
    uint64_t key; /* class of a choice whose turn is measured */
    unsigned turn;
    bool measure;
};

/* Where to execute a job: on the loop thread, for a few µs; on one thread; on all threads. */
enum execute_place { EXECUTE_INLINE, EXECUTE_LIGHT, EXECUTE_HEAVY };
enum execute_place execute_place(struct host_device *device, const struct backend_job *job);

/* Returns the variants of an op, best first, NULL-terminated; NULL: none. */
const char *const *execute_variants(struct host_device *device, const struct op *op, enum dtype dtype);

/* The progress of a job through its executions and steps. All zeroes: not begun. */
struct progress {
    struct execution execution;
    uint64_t executed;
    unsigned step;     /* the next step of the present execution */
    uint64_t spent_ns; /* time of the steps before it */
};

void progress_fail(struct backend_job *job, const struct error *e);

/* Executes the job. True: the job has ended; false: its time slice is over, and another stream waits. `waiting`: the
 * number of waiting streams; NULL: none can wait. */
bool progress_run(struct host_device *device, struct progress *p, struct backend_job *job,
                  const struct thread_context *context, const atomic_uint *waiting);

#endif
