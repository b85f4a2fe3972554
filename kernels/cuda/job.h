/* Jobs on their streams: issuing executions a bounded way ahead, reaping them, ending them in order. */
#ifndef KOPS_CUDA_JOB_H
#define KOPS_CUDA_JOB_H

#include "backend/backend.h"
#include "staging.h"
#include "stream.h"
#include "work.h"

enum {
    JOB_WINDOW = 16,   /* executions of one job issued ahead of the last reaped */
    STREAM_WINDOW = 32 /* of all jobs of a stream: launches block when a channel's queue is full (some 1000 entries) */
};

/* One execution that was issued. */
struct cuda_execution {
    CUevent start, end; /* start NULL: not timed, end is of kind EVENT_PLAIN_END */
};

enum cuda_job_state { JOB_NEW, JOB_ISSUING, JOB_ISSUED };

/* The backend's part of a job: base->impl from prepare() or submit() until done(). */
struct cuda_job {
    struct list link; /* in device->free_jobs */
    enum cuda_job_state state;
    bool prepared; /* work (and staging) are ready */
    struct cuda_work work;
    struct cuda_staging staging;
    struct plan staged_plan; /* work's, when the job is staged */
    uint32_t issued, reaped; /* executions, warmup included */
    struct cuda_execution executions[JOB_WINDOW];
    CUevent tail; /* after the copies back, or NULL */
};

/* The vtable's functions. */
bool cuda_needs_prepare(struct backend_device *base, const struct backend_job *job);
int cuda_prepare(struct backend_stream *stream, struct backend_job *job, struct error *e);
void cuda_submit(struct backend_stream *stream, struct backend_job *job);
unsigned cuda_poll(struct backend_device *base);

/* ---- between job.c, issue.c and reap.c ---- */

/* The operands' places in device memory; 0 for those that have none. */
void cuda_job_addresses(const struct backend_job *base, uint64_t *ret_addresses);

/* Ends the job with this error; keeps the first one. */
void cuda_job_fail(struct backend_job *base, const struct error *e);

/* Issues what the stream's windows allow. The context is current. */
void cuda_stream_issue(struct cuda_stream *s);

/* Back to the pool. Thread: any. */
void cuda_job_give(struct cuda_device *d, struct cuda_job *job);

/* The event whose happening gives poll() something to do, or NULL when there is something now. */
CUevent cuda_stream_next_event(const struct cuda_stream *s);

/* Frees the pool of jobs. */
void cuda_jobs_close(struct cuda_device *d);

#endif
