/* Runs the jobs of one device: issues their executions a bounded way ahead of the GPU, sees them end, and gives jobs
 * back in order.
 *
 * The executor's own functions run on the loop thread, but for cuda_needs_prepare() and cuda_prepare(). */
#ifndef KOPS_CUDA_EXECUTOR_H
#define KOPS_CUDA_EXECUTOR_H

#include "graph.h"
#include "job.h"
#include "overhead.h"
#include "recorded.h"
#include "stamps.h"
#include "stream.h"
#include "waiter.h"

struct cuda_executor {
    struct cuda_device *device;
    const struct cuda_kernels *kernels;
    struct cuda_capture capture;    /* its own lock */
    struct cuda_job_pool job_pool;  /* its own lock */
    atomic_uint unfinished;         /* jobs submitted whose done() was not called; the loop changes it */
    atomic_bool records_are_wanted; /* CUPTI is to be started */

    /* loop */
    struct cuda_streams streams;
    struct cuda_stamps stamps;
    struct cuda_gates gates;
    struct cuda_overhead overhead; /* of events */
    struct cuda_clock stamp_clock; /* by which kernels write their times */
    struct cuda_recorded recorded;
    struct cuda_waiters *waiters;
    struct list busy;           /* struct cuda_stream with unfinished jobs */
    uint64_t progress_ns;       /* when an execution was last seen to have ended, or work came */
    uint64_t health_checked_ns; /* when the driver was last asked about the context */
    unsigned polls;             /* with busy streams, since the clock was last read */
    bool told_of_naps;          /* the log says that the driver refused an event to sleep on */
};

/* Neither moves while the executor is open. The context is current. */
int cuda_executor_open(struct cuda_executor *x, struct cuda_device *d, const struct cuda_kernels *kernels,
                       struct error *e);
/* No job is unfinished. */
void cuda_executor_close(struct cuda_executor *x);

/* The functions of struct backend with these names. */
int cuda_executor_stream_new(struct cuda_executor *x, enum backend_priority priority,
                             struct backend_stream **ret_stream, struct error *e);
bool cuda_needs_prepare(struct cuda_executor *x, const struct backend_job *job);
int cuda_prepare(struct backend_stream *stream, struct backend_job *job, struct error *e);

/* Prepares one step of a job of the stream; cuda_job_take_steps() has made `own`. Thread: any; it may block where
 * cuda_needs_prepare() says so. */
int cuda_prepare_step(struct cuda_stream *s, const struct step *step, struct cuda_step *own, struct error *e);
void cuda_submit(struct backend_stream *stream, struct backend_job *job);
unsigned cuda_poll(struct cuda_executor *x);
void cuda_arm(struct cuda_executor *x);

#endif
