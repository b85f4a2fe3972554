/* How long jobs take, by what they do: the time from one job's beginning on an executor to its end as the daemon saw
 * it. For the windows in which everybody polls (proto/wait.h); nothing is decided by it but that. Thread: loop. */
#ifndef KOPS_EXECUTOR_FORECAST_H
#define KOPS_EXECUTOR_FORECAST_H

#include "backend/backend.h"
#include "proto/wait.h"

enum { FORECAST_KINDS = 4096 }; /* that are remembered: a power of two */

struct forecast {
    struct {
        uint64_t key;
        uint64_t ns; /* of one execution */
    } kinds[FORECAST_KINDS];
};

/* What tells kinds of work apart: ops, dtypes, sizes and the launch; `program` in their place where the job is one's.
 */
uint64_t forecast_key(const struct backend_job *job, uint32_t program);

/* How long the job will take; 0: no job like it was seen. */
uint64_t forecast_of(const struct forecast *f, uint64_t key, const struct backend_job *job);

/* The job had ended before the window that it was slept for: it took less time, or the sleep's timer was late. */
void forecast_learn_less(struct forecast *f, uint64_t key);

/* The job took so long, with all its executions. */
void forecast_learn(struct forecast *f, uint64_t key, const struct backend_job *job, uint64_t took_ns);

#endif
