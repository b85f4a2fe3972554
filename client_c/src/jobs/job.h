/* Work on its way to the daemon, whatever its method: made known (buffers, programs), numbered, packed, sent, and tried
 * again on a new connection where that is safe. Lock held; may drop it while it waits. */
#ifndef KOPS_CLIENT_JOB_H
#define KOPS_CLIENT_JOB_H

#include "ordered.h"
#include "session/call.h"

struct job;

/* Fills in the ids of the present connection; false: the connection does not know something yet. Does not drop the
 * lock. */
typedef bool job_resolve(struct kops_client *c, struct job *job);

/* Makes one such thing known, or says why it cannot be. */
typedef enum kops_code job_ensure(struct kops_client *c, struct job *job, uint64_t deadline, struct kops_error *e);

struct job {
    wire_pack *pack;
    const void *wire;
    job_resolve *resolve; /* NULL: nothing to resolve */
    job_ensure *ensure;
    void *context; /* for these two, and `safe` */
    bool here;     /* good on the present connection alone: no other is made for it, `ensure` says why */

    /* Whether the work does no harm when it runs twice, see session/call.h; NULL: the binding decides whether to repeat
     * it.
     */
    recovery_safe *safe;

    /* Where the reply goes: it is decoded into the call's timings, or kept as it is. */
    const struct kops_options *options; /* for `samples`, and whether times are wanted; NULL: none */
    uint64_t sent_ns;                   /* when the caller's call began; 0: not told */
    wire_decode *decode;
    void *into; /* NULL: the timings */
    struct native_reply *reply;
    bool keeps_reply; /* in a reply of the call's own, for native_wait() */

    const int *fds;
    unsigned n_fds;

    /* For a job on a CUDA stream. */
    struct wire_how *how; /* the part that gets the numbers, or `raw` does */
    struct wire_raw *raw;
    const struct wire_run *run; /* one op or launch, which a batch gathers; NULL: something else */
    const char *name;           /* of the op or kernel, for messages; lives as long as the client */
    struct ordered_work *order; /* NULL: not on a CUDA stream */
};

/* After KOPS_OK the call is under way, or has ended; an ordered one has no caller (*ret_call is not set). */
enum kops_code job_send(struct kops_client *c, struct job *job, uint64_t deadline, struct call **ret_call,
                        struct kops_error *e);

/* Sends and waits for the reply, be it decoded or as it is. `what` is the message of a timeout. */
enum kops_code job_await(struct kops_client *c, struct job *job, const char *what, uint64_t deadline,
                         struct kops_error *e);

/* Sends and waits; a run that times out is cancelled. `ret_result` may be NULL. */
enum kops_code job_run(struct kops_client *c, struct job *job, uint64_t deadline, struct kops_result *ret_result,
                       struct kops_error *e);

/* The outcome of a call that has ended; gives it back. */
enum kops_code job_finish(struct kops_client *c, struct call *call, struct kops_result *ret_result,
                          struct kops_error *e);

/* Sends, and makes a ticket. */
enum kops_code job_submit(struct kops_client *c, struct job *job, uint64_t deadline, kops_ticket *ret_ticket,
                          struct kops_error *e);

#endif
