/* Runs the jobs of one device: issues a bounded number of executions ahead of the GPU, detects their end, and returns
 * jobs in order. Thread: loop, except cuda_prepare() and cuda_prepare_step(). The context is current in functions that
 * take a struct cuda_stream. */
#ifndef KOPS_CUDA_EXECUTOR_H
#define KOPS_CUDA_EXECUTOR_H

#include "graph.h"
#include "job.h"
#include "stamps.h"
#include "stream.h"
#include "timed.h"
#include "waiter.h"

struct cuda_executor {
    struct cuda_device *device;
    const struct cuda_kernels *kernels;
    struct cuda_capture capture;    /* thread-safe */
    struct cuda_job_pool job_pool;  /* thread-safe */
    atomic_uint unfinished;         /* submitted jobs before done(); written by the loop */
    atomic_bool records_are_wanted; /* cuda_prepare() starts CUPTI */

    /* The members below belong to the loop. */
    struct cuda_streams streams;
    struct cuda_stamps stamps;
    struct cuda_gates gates;
    struct cuda_overhead overhead; /* time that events add to measurements */
    struct cuda_clock stamp_clock;
    struct cuda_recorded recorded;
    struct cuda_waiters *waiters;
    struct list busy;           /* struct cuda_stream with unfinished jobs */
    uint64_t progress_ns;       /* time of the last detected end, or of the last submitted work */
    uint64_t health_checked_ns; /* time of the last query of a stream */
    unsigned polls;             /* polls with busy streams, which tell when to read the clock */
    bool told_of_naps;          /* an event that the driver refused was logged */
};

/* `x` and `d` stay in place while the executor is open. The context is current. */
int cuda_executor_open(struct cuda_executor *x, struct cuda_device *d, const struct cuda_kernels *kernels,
                       struct error *e);
/* Needs that no job is unfinished. */
void cuda_executor_close(struct cuda_executor *x);

/* Functions of struct backend: */
bool cuda_submit(struct backend_stream *stream, struct backend_job *job);
unsigned cuda_poll(struct cuda_executor *x);
void cuda_arm(struct cuda_executor *x);

/* ---- preparing jobs: job.c ---- */

/* Whether preparing the job may block, so that the loop leaves it to a thread. */
bool cuda_needs_prepare(struct cuda_executor *x, const struct backend_job *job);
/* Prepares the first job of its stream. After a failure `job` is unchanged, or can only be given back. Thread: any, but
 * no other thread uses the stream; may block. */
int cuda_prepare(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct error *e);

/* Prepares a step of a job of the stream; `own` comes from cuda_job_take_steps(). Thread: any; may block where
 * cuda_needs_prepare() is true. */
int cuda_prepare_step(struct cuda_stream *s, const struct step *step, struct cuda_step *own, struct error *e);

/* ---- issue.c ---- */

/* Issues executions of the stream's jobs as far as the windows allow. */
void cuda_stream_issue(struct cuda_stream *s);

/* Returns the kind of the event behind an execution. Events to sleep on cost each call 0.5 to 1 us more (H200). With a
 * flag they are not needed here: one is recorded before a thread sleeps. */
static inline enum cuda_event_kind cuda_end_kind(const struct cuda_stream *s, const struct cuda_execution *x)
{
    if (!x->by_events)
        return EVENT_PLAIN_END;
    return s->flag ? EVENT_TIMED : EVENT_TIMED_END;
}

#endif
