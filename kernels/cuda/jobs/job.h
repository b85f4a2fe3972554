/* The backend's part of jobs, with their steps and executions. */
#ifndef KOPS_CUDA_JOB_H
#define KOPS_CUDA_JOB_H

#include <stdatomic.h>

#include "compute/work.h"
#include "staging/staging.h"
#include "stamps.h"
#include "util/list.h"

struct cuda_graph;
struct cuda_stream;

enum { JOB_WINDOW = 16 /* executions of a job in flight, at most */ };

/* An execution that was issued. Its time comes from one of `times`, `ticket` and `start`, or it is not timed. */
struct cuda_execution {
    const atomic_ullong *times; /* stamps that the kernel writes; or NULL */
    uint64_t ticket;            /* tells CUPTI's records; 0: none */
    uint64_t issued_ns;         /* the time before it was issued, if timed */
    CUevent start;              /* EVENT_TIMED, or NULL */
    CUevent end;                /* NULL: not timed by events, and `mark` tells of the end */
    uint64_t mark;              /* number among the stream's marks; 0: only `end` tells of the end */
    unsigned steps;             /* launches, as STEP_WINDOW counts them */
    bool by_events;             /* `start` was recorded */
    struct cuda_gate gate;      /* used where it is timed by events */
    bool settled;               /* the work and both events were on the stream before the GPU began with them */
};

/* An ended execution whose record may come later. */
struct cuda_ended {
    uint64_t ticket, seen_ns;
};

enum cuda_job_state {
    JOB_NEW,
    JOB_WAITING, /* for a thread to prepare it, or to become the stream's first job */
    JOB_PREPARING,
    JOB_ISSUING,
    JOB_ISSUED
};

/* Parts of a step with operands in host memory. */
struct cuda_staged {
    struct cuda_staging staging;
    struct plan plan; /* the plan of the work, with the scratch memory's strides */
};

struct cuda_step {
    struct cuda_work work;
    struct cuda_staged *staged; /* owned; NULL: all operands are in device memory */
};

/* The backend's part of a job: base->impl, from submit() until done(). */
struct cuda_job {
    struct list link;           /* in the pool */
    struct cuda_stream *stream; /* JOB_PREPARING */
    enum cuda_job_state state;
    bool prepared;           /* by a thread */
    atomic_bool answered;    /* JOB_PREPARING: the thread is done; the loop has not seen that yet */
    struct cuda_step *steps; /* the job's steps: `first`, or allocated; NULL: `graph` runs them */
    unsigned n_steps;
    unsigned launches; /* launches of an execution; 1 with a graph */
    struct cuda_step first;
    struct cuda_graph *graph; /* a reference; or NULL */
    bool signalled;
    uint32_t issued, ended; /* executions, with warmup, and one more for a signal that no execution carried */
    struct cuda_execution executions[JOB_WINDOW];
    bool recorded;            /* CUPTI's records time the executions */
    struct cuda_ended *exact; /* `repeat` executions whose records the job waits for; or NULL */
    uint32_t n_exact, exact_read;
    struct cuda_ended later; /* an execution whose time is reported after the job's end; ticket 0: none */
    bool written_back;       /* copies back come before the mark of the last execution */
    CUevent tail;            /* comes after the copies back; or NULL */
};

/* Thread: any. */
struct cuda_job_pool {
    pthread_mutex_t lock;
    struct list free; /* struct cuda_job */
};

void cuda_job_pool_open(struct cuda_job_pool *pool);
void cuda_job_pool_close(struct cuda_job_pool *pool);

struct cuda_job *cuda_job_take(struct cuda_job_pool *pool);
/* The context is current. */
void cuda_job_give(struct cuda_job_pool *pool, struct cuda_job *job);

/* Provides the job's steps, zeroed except for plan and addresses. */
int cuda_job_take_steps(const struct cuda_device *d, struct cuda_job *job, const struct backend_job *base,
                        struct error *e);

/* Returns the staging of a job with one step, whose operands are copied once for all executions; or NULL. */
static inline struct cuda_staging *cuda_job_staging(struct cuda_job *job)
{
    return job->n_steps == 1 && job->steps && job->steps[0].staged ? &job->steps[0].staged->staging : NULL;
}

/* Whether the client wants the times of copies between host and device, which need events. */
static inline bool cuda_job_copies_are_timed(const struct backend_job *base)
{
    return base->timing == TIMING_NOW || base->timing == TIMING_EXACT;
}

/* Sets the job's error, unless it has one. */
void cuda_job_fail(struct backend_job *base, const struct error *e);

#endif
