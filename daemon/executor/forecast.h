/* Times that jobs take, by the kind of their work: from a job's beginning on an executor to its end as the daemon saw
 * it. Used only for the windows in which everybody polls (proto/wait.h). Thread: loop. */
#ifndef KOPS_EXECUTOR_FORECAST_H
#define KOPS_EXECUTOR_FORECAST_H

#include "backend/backend.h"
#include "proto/wait.h"

enum { FORECAST_KINDS = 4096 }; /* kinds that are remembered: a power of two */

struct forecast {
    struct {
        uint64_t key;
        uint64_t ns; /* time of one execution */
    } kinds[FORECAST_KINDS];
};

/* Returns the key of a kind of work: a hash of ops, dtypes, sizes and the launch, or of `program` where the job runs
 * one. */
uint64_t forecast_key(const struct backend_job *job, uint32_t program);

/* Returns the time that the job will take; 0: no job of its kind was seen. */
uint64_t forecast_of(const struct forecast *f, uint64_t key, const struct backend_job *job);

/* Notes that a job ended before the window: it took less time, or the sleep's timer was late. */
void forecast_learn_less(struct forecast *f, uint64_t key);

/* Notes the time of a job with all its executions. */
void forecast_learn(struct forecast *f, uint64_t key, const struct backend_job *job, uint64_t took_ns);

#endif
