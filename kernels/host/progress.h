/* The progress of one job through its executions and steps. Thread: the one that executes the job. */
#ifndef KOPS_HOST_PROGRESS_H
#define KOPS_HOST_PROGRESS_H

#include <stdatomic.h>

#include "execute.h"

/* All zeroes: not begun. */
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
