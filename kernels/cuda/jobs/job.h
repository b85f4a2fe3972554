/* Jobs as the backend has them, with their steps and executions. */
#ifndef KOPS_CUDA_JOB_H
#define KOPS_CUDA_JOB_H

#include <stdatomic.h>

#include "compute/work.h"
#include "staging/staging.h"
#include "stamps.h"
#include "util/list.h"

struct cuda_graph;
struct cuda_stream;

enum { JOB_WINDOW = 16 /* executions of one job issued ahead of the last one that ended */ };

/* One execution that was issued. */
struct cuda_execution {
    const atomic_ullong *times; /* where the kernel itself writes its times, in place of events; or NULL */
    uint64_t ticket;            /* of CUPTI's records, in place of events; 0: none */
    uint64_t issued_ns;         /* of a timed one: before it was */
    CUevent start;              /* EVENT_TIMED; NULL: not timed by events */
    CUevent end;                /* NULL: not timed by events, and the mark tells */
    uint64_t mark;              /* its number among the stream's marks; 0: only the event tells of its end */
    unsigned steps;             /* launches that it counts for */
    bool by_events;             /* a start was marked */
    struct cuda_gate gate;      /* of one that is timed by events */
    bool settled;               /* all of it was on the stream, the events too, before the GPU began with it */
};

/* An execution that has ended, whose record may come later. */
struct cuda_ended {
    uint64_t ticket, seen_ns;
};

enum cuda_job_state {
    JOB_NEW,
    JOB_WAITING, /* to be prepared: it is not the stream's first, or no thread was free */
    JOB_PREPARING,
    JOB_ISSUING,
    JOB_ISSUED
};

/* The further parts of a step with operands in host memory. */
struct cuda_staged {
    struct cuda_staging staging;
    struct plan plan; /* the work's, with the scratch memory's strides */
};

struct cuda_step {
    struct cuda_work work;
    struct cuda_staged *staged; /* owned; NULL: all operands are in device memory */
};

/* The backend's part of a job: base->impl from submit() until done(). */
struct cuda_job {
    struct list link;           /* in the pool */
    struct cuda_stream *stream; /* JOB_PREPARING */
    enum cuda_job_state state;
    bool prepared;           /* by a thread: steps are ready */
    atomic_bool answered;    /* JOB_PREPARING: the thread is done, and the loop has not seen it */
    struct cuda_step *steps; /* as many as the job's: `first`, or allocated; NULL while a graph stands for them */
    unsigned n_steps;
    unsigned launches; /* of one execution; 1 with a graph */
    struct cuda_step first;
    struct cuda_graph *graph; /* a reference: it is launched in place of the steps; or NULL */
    bool signalled;           /* the job's signal is issued */
    uint32_t issued, ended;   /* executions, warmup included, and one more for a signal that none carried */
    struct cuda_execution executions[JOB_WINDOW];
    bool recorded;            /* its timed executions have records of CUPTI's */
    struct cuda_ended *exact; /* of executions whose records the job waits for: as many as it repeats; or NULL */
    uint32_t n_exact, exact_read;
    struct cuda_ended later; /* of TIMING_STATISTIC: the host is told its time after the job's end; ticket 0: none */
    bool written_back;       /* the copies back are before the mark of the last execution */
    CUevent tail;            /* after the copies back, or NULL */
};

/* Jobs that are kept for reuse. Thread: any. */
struct cuda_job_pool {
    pthread_mutex_t lock;
    struct list free; /* struct cuda_job */
};

void cuda_job_pool_open(struct cuda_job_pool *pool);
void cuda_job_pool_close(struct cuda_job_pool *pool);

struct cuda_job *cuda_job_take(struct cuda_job_pool *pool);
/* The context is current. */
void cuda_job_give(struct cuda_job_pool *pool, struct cuda_job *job);

/* Makes room for the job's steps, zero but for plan and addresses. */
int cuda_job_take_steps(const struct cuda_device *d, struct cuda_job *job, const struct backend_job *base,
                        struct error *e);

/* The staging of a job of one step, whose operands are copied once for all executions; or NULL. */
static inline struct cuda_staging *cuda_job_staging(struct cuda_job *job)
{
    return job->n_steps == 1 && job->steps && job->steps[0].staged ? &job->steps[0].staged->staging : NULL;
}

/* Whether the client asks for the times of copies between host and device, which take events. */
static inline bool cuda_job_copies_are_timed(const struct backend_job *base)
{
    return base->timing == TIMING_NOW || base->timing == TIMING_EXACT;
}

/* Keeps the job's first error. */
void cuda_job_fail(struct backend_job *base, const struct error *e);

#endif
