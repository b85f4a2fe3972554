/* Runs the jobs of one device: issues their executions a bounded way ahead of the GPU, sees them end, and gives jobs
 * back in order. Thread: loop, but for cuda_prepare() and cuda_prepare_step(); the context is
 * current in functions that take a struct cuda_stream. */
#ifndef KOPS_CUDA_EXECUTOR_H
#define KOPS_CUDA_EXECUTOR_H

#include "graph.h"
#include "job.h"
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
void cuda_submit(struct backend_stream *stream, struct backend_job *job);
unsigned cuda_poll(struct cuda_executor *x);
void cuda_arm(struct cuda_executor *x);

/* ---- prepare.c ---- */

/* Whether the job's preparation may block: the loop leaves it to a thread. */
bool cuda_needs_prepare(struct cuda_executor *x, const struct backend_job *job);
/* Prepares the job, whose stream has no earlier one. After a failure `job` is as it was, or can only be given back.
 * Thread: any, which has the stream to itself; may block. */
int cuda_prepare(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct error *e);

/* Prepares one step of a job of the stream; cuda_job_take_steps() has made `own`. Thread: any; it may block where
 * cuda_needs_prepare() says so. */
int cuda_prepare_step(struct cuda_stream *s, const struct step *step, struct cuda_step *own, struct error *e);

/* ---- issue.c ---- */

/* Issues as much of the stream's jobs as its windows allow. */
void cuda_stream_issue(struct cuda_stream *s);

/* ---- completion.c: seeing executions end, and taking ended jobs off their streams ---- */

/* The kind of an execution's end. Events that a thread can sleep on cost each call 0.5 to 1 us more than plain ones
 * (H200): where a flag tells of the end, such an event is recorded only before a thread sleeps. */
static inline enum cuda_event_kind cuda_end_kind(const struct cuda_stream *s, const struct cuda_execution *x)
{
    if (!x->by_events)
        return EVENT_PLAIN_END;
    return s->flag ? EVENT_TIMED : EVENT_TIMED_END;
}

/* How a thread can wait for the stream's next completion. */
enum cuda_wait { WAIT_NOTHING /* there is something to do now */, WAIT_EVENT, WAIT_FLAG, WAIT_THREAD /* it wakes */ };
enum cuda_wait cuda_stream_waits_for(struct cuda_stream *s, CUevent *ret_event);

/* Appends the jobs at the stream's head that have ended to `finished`. */
void cuda_stream_finish(struct cuda_stream *s, struct list *finished);

/* The device is lost: appends all jobs of the stream to `finished`. Jobs that had ended before are done, as far as
 * flags and events still tell; the others fail. A job that a thread prepares stays, with those behind it, until the
 * next call. */
void cuda_stream_fail(struct cuda_stream *s, struct list *finished);

/* Marks the device broken when the driver says that the stream's context is, or when a kernel has written to the
 * stream's flag, so that the end of its work would never be seen. */
void cuda_stream_check(struct cuda_stream *s);

/* ---- timed.c: by CUPTI's record of an execution, by its kernel where that can tell, else by events around it ---- */

/* Not timed, as yet. */
void cuda_timed_init(struct cuda_execution *x);

/* Before the work of a timed execution is enqueued. */
int cuda_timed_begin(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct cuda_execution *x,
                     struct error *e);
/* All of the execution is on the stream, the event behind it too. */
void cuda_timed_enqueued(struct cuda_stream *s, struct cuda_execution *x);

/* The execution has ended: its time becomes a sample of the job, or will when CUPTI's record has come. */
void cuda_timed_end(struct cuda_stream *s, struct backend_job *base, struct cuda_job *job, struct cuda_execution *x,
                    uint64_t seen_ns);

/* Before the stream's driver stream is destroyed. */
void cuda_timed_forget(struct cuda_stream *s);

#endif
