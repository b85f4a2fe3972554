/* Jobs on their streams: issuing executions a bounded way ahead, reaping them, ending them in order. */
#ifndef KOPS_CUDA_JOB_H
#define KOPS_CUDA_JOB_H

#include "backend/backend.h"
#include "events.h"
#include "graph.h"
#include "staging.h"
#include "stream.h"
#include "work.h"

enum {
    JOB_WINDOW = 16,    /* executions of one job issued ahead of the last reaped */
    STREAM_WINDOW = 32, /* of all jobs of a stream: launches block when a channel's queue is full (some 1000 entries) */
    STEP_WINDOW = 512   /* launches of a stream, however they are spread over executions: the most ops of a sequence */
};

/* One execution that was issued. */
struct cuda_execution {
    CUevent start;  /* EVENT_TIMED; NULL: not timed */
    CUevent end;    /* NULL: not timed, and the mark tells */
    uint64_t mark;  /* the stream's flag has at least this value once it has ended; 0: only the event tells */
    unsigned steps; /* launches that it counts for */
};

enum cuda_job_state { JOB_NEW, JOB_ISSUING, JOB_ISSUED };

/* What a step with operands in host memory has besides. */
struct cuda_staged {
    struct cuda_staging staging;
    struct plan plan; /* the work's, with the scratch memory's strides */
};

struct cuda_step {
    struct cuda_work work;
    struct cuda_staged *staged; /* owned; NULL: all operands are in device memory */
};

/* The backend's part of a job: base->impl from prepare() or submit() until done(). */
struct cuda_job {
    struct list link; /* in device->free_jobs */
    enum cuda_job_state state;
    bool prepared;           /* steps are ready */
    struct cuda_step *steps; /* as many as the job's: `first`, or allocated; NULL while a graph stands for them */
    unsigned n_steps;
    struct cuda_step first;
    struct cuda_graph *graph; /* a reference: what is launched in place of the steps; or NULL */
    bool signalled;           /* the job's signal is issued */
    uint32_t issued, reaped;  /* executions, warmup included, and one more for a signal that none carried */
    struct cuda_execution executions[JOB_WINDOW];
    CUevent tail; /* after the copies back, or NULL */
};

/* The vtable's functions. */
bool cuda_needs_prepare(struct backend_device *base, const struct backend_job *job);
int cuda_prepare(struct backend_stream *stream, struct backend_job *job, struct error *e);
void cuda_submit(struct backend_stream *stream, struct backend_job *job);
unsigned cuda_poll(struct backend_device *base);

/* ---- between job.c, issue.c and reap.c ---- */

/* Room for the job's steps; every one zero but for plan and addresses. */
int cuda_job_take_steps(const struct cuda_device *d, struct cuda_job *job, const struct backend_job *base,
                        struct error *e);

/* The staging of a job of one step, which is copied once for all its executions; or NULL. */
static inline struct cuda_staging *cuda_job_staging(struct cuda_job *job)
{
    return job->n_steps == 1 && job->steps && job->steps[0].staged ? &job->steps[0].staged->staging : NULL;
}

/* Ends the job with this error; keeps the first one. */
void cuda_job_fail(struct backend_job *base, const struct error *e);

/* Issues what the stream's windows allow. The context is current. */
void cuda_stream_issue(struct cuda_stream *s);

/* Back to the pool. Thread: any; the context is current. */
void cuda_job_give(struct cuda_device *d, struct cuda_job *job);

/* Of which kind the end of an execution is. Events that a thread can sleep on cost each call 0.5 to 1 us more than
 * plain ones (H200): where a flag tells of the end, none is recorded until somebody wants to sleep. */
static inline enum cuda_event_kind cuda_end_kind(const struct cuda_stream *s, const struct cuda_execution *x)
{
    if (!x->start)
        return EVENT_PLAIN_END;
    return s->flag ? EVENT_TIMED : EVENT_TIMED_END;
}

/* What poll() waits for on the stream. */
enum cuda_wait { WAIT_NOTHING /* there is something to do now */, WAIT_EVENT, WAIT_FLAG };
enum cuda_wait cuda_stream_waits_for(struct cuda_stream *s, CUevent *ret_event);

/* Frees the pool of jobs. */
void cuda_jobs_close(struct cuda_device *d);

#endif
