/* Where and how jobs are executed: step by step, under the SIGBUS guard. Thread: the one that owns the context. */
#ifndef KOPS_HOST_EXECUTE_H
#define KOPS_HOST_EXECUTE_H

#include <stdatomic.h>

#include "backend/backend.h"
#include "guard.h"
#include "kernels.h"
#include "pool.h"

struct host_device;

/* The means of one thread to execute jobs, one at a time. */
struct thread_context {
    struct guard *guard;
    struct pool *pool;
};

/* How one step is executed, the same at every repeat. */
struct execution {
    const struct kernels *kernels;
    const char *variant;
    /* gemm's, see gemm_way.h */
    unsigned way;
    uint64_t key; /* class and turn of a choice, which is to be measured */
    unsigned turn;
    bool measure;
};

/* The place to execute a job: on the loop thread, for a few µs; by one thread; or by all threads. */
enum execute_place { EXECUTE_INLINE, EXECUTE_LIGHT, EXECUTE_HEAVY };
enum execute_place execute_place(struct host_device *device, const struct backend_job *job);

/* The NULL-terminated variants of an op, best first; NULL: none. */
const char *const *execute_variants(struct host_device *device, const struct op *op, enum dtype dtype);

/* The progress of one job through its executions and steps. All zeroes: not begun. */
struct progress {
    struct execution execution;
    uint64_t executed; /* executions that have ended */
    unsigned step;     /* the next one of the execution under way */
    uint64_t spent_ns; /* by the steps before it */
};

void progress_fail(struct backend_job *job, const struct error *e);

/* Executes the job until it has ended (true), or until its time slice has and another stream waits (false). `waiting`:
 * the number of streams that wait; NULL: none can. */
bool progress_run(struct host_device *device, struct progress *p, struct backend_job *job,
                  const struct thread_context *context, const atomic_uint *waiting);

#endif
