/* Putting work of any form on a CUDA stream, and the choice among the ways in which a public call sends its work. Lock
 * held; may drop it while it waits. */
#ifndef KOPS_CLIENT_ENQUEUE_H
#define KOPS_CLIENT_ENQUEUE_H

#include "job.h"
#include "wire/wire.h"

/* Refuses options that an ordered call cannot have. */
enum kops_code enqueue_check(const struct kops_options *options, struct kops_error *e);

/* Enqueues a job that has a name, and `how` or `raw`. In a batch, a job with `run` is gathered. */
enum kops_code enqueue_work(struct kops_client *c, struct job *job, void *cuda_stream, uint64_t deadline,
                            struct kops_error *e);

/* The way that a public call sends its work: wait, get a ticket, put it on a CUDA stream, or ask for its counters. */
struct dispatch {
    enum dispatch_way { DISPATCH_RUN, DISPATCH_SUBMIT, DISPATCH_ENQUEUE, DISPATCH_COUNT } way;
    struct kops_result *ret_result; /* DISPATCH_RUN; may be NULL */
    kops_ticket *ret_ticket;        /* DISPATCH_SUBMIT */
    void *stream;                   /* DISPATCH_ENQUEUE */
    struct wire_counters *counters; /* DISPATCH_COUNT: place for the counters */
    const char *caches;             /* DISPATCH_COUNT: the caches that are wanted */
};

/* Refuses options that a call of this way cannot have. `options` may be NULL. */
static inline enum kops_code dispatch_check(const struct dispatch *d, const struct kops_options *options,
                                            struct kops_error *e)
{
    return d->way == DISPATCH_ENQUEUE ? enqueue_check(options, e) : KOPS_OK;
}

static inline enum kops_code dispatch(const struct dispatch *d, struct kops_client *c, struct job *job,
                                      uint64_t deadline, struct kops_error *e)
{
    switch (d->way) {
    case DISPATCH_RUN:
        return job_run(c, job, deadline, d->ret_result, e);
    case DISPATCH_SUBMIT:
        return job_submit(c, job, deadline, d->ret_ticket, e);
    case DISPATCH_COUNT:
        job->decode = wire_decode_counters;
        job->into = d->counters;
        return job_await(c, job, "the counters were not read in time", deadline, e);
    case DISPATCH_ENQUEUE:
        break;
    }
    return enqueue_work(c, job, d->stream, deadline, e);
}

#endif
