/* A job: work of any method on its way to the daemon. Its buffers and programs are made known, it is numbered, packed
 * and sent, and sent again on a new connection where that is safe. Lock held; may drop it while it waits. */
#ifndef KOPS_CLIENT_JOB_H
#define KOPS_CLIENT_JOB_H

#include "ordered.h"
#include "session/connect.h"
#include "wire/wire.h"

struct job;

/* Fills in the ids of the present connection; false: the connection does not know a thing yet. Keeps the lock. */
typedef bool job_resolve(struct kops_client *c, struct job *job);

/* Makes an unknown thing known, or says why it cannot be. */
typedef enum kops_code job_ensure(struct kops_client *c, struct job *job, uint64_t deadline, struct kops_error *e);

struct job {
    wire_pack *pack;
    const void *wire;
    job_resolve *resolve; /* NULL: nothing to resolve */
    job_ensure *ensure;
    void *context;

    /* Tells whether running the work twice is harmless, see session/connect.h; NULL: the binding decides whether to
     * repeat it. */
    recovery_safe *safe;

    /* Destination of the reply: decoded into the call's timings, or kept as it is. */
    const struct kops_options *options; /* for `samples`, and whether times are wanted; NULL: none */
    uint64_t sent_ns;                   /* time when the caller's call began; 0: not told */
    wire_decode *decode;
    void *into; /* NULL: into the timings */
    struct native_reply *reply;
    bool keeps_reply; /* keep the reply in the call, for native_wait() */

    const int *fds;
    unsigned n_fds;

    /* For a job on a CUDA stream. */
    struct wire_how *how; /* part of `run` that gets stream and numbers; else `raw` gets them */
    struct wire_raw *raw;
    const struct wire_run *run; /* an op or launch that a batch gathers; NULL: other work */
    const char *name;           /* name of the op or kernel, for messages; lives as long as the client */
    struct ordered_work *order; /* NULL: not on a CUDA stream */
};

/* Sends a job. After KOPS_OK the call is under way, or has ended; an ordered call has no caller (*ret_call is not set).
 */
enum kops_code job_send(struct kops_client *c, struct job *job, uint64_t deadline, struct call **ret_call,
                        struct kops_error *e);

/* Sends and waits for the reply, be it decoded or as it is. `what` is the message of a timeout. */
enum kops_code job_await(struct kops_client *c, struct job *job, const char *what, uint64_t deadline,
                         struct kops_error *e);

/* Sends and waits; a run that times out is cancelled. `ret_result` may be NULL. */
enum kops_code job_run(struct kops_client *c, struct job *job, uint64_t deadline, struct kops_result *ret_result,
                       struct kops_error *e);

/* Returns the outcome of a call that has ended, and gives the call back. */
enum kops_code job_finish(struct kops_client *c, struct call *call, struct kops_result *ret_result,
                          struct kops_error *e);

/* Sends, and makes a ticket. */
enum kops_code job_submit(struct kops_client *c, struct job *job, uint64_t deadline, kops_ticket *ret_ticket,
                          struct kops_error *e);

/* ---- work of any form on a CUDA stream, and the choice among the ways in which a public call sends its work ---- */

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
