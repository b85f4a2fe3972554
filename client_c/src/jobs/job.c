#include "job.h"

#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/fail.h"
#include "ordered.h"
#include "session/connect.h"
#include "session/session.h"

enum {
    CANCEL_GRACE_MS = 250 /* how long a timed-out call waits for the outcome of its cancellation */
};

/* Sets the destination of the reply. */
static enum kops_code prepare(struct call *call, const struct job *job, struct kops_error *e)
{
    call->decode = job->decode;
    call->into = job->into ? job->into : &call->timings;
    call->owns_reply = job->keeps_reply;
    call->reply = job->keeps_reply ? calloc(1, sizeof(*call->reply)) : job->reply;
    if (job->keeps_reply && !call->reply)
        return fail(e, KOPS_ERR_NO_MEMORY, "there is no memory for a reply");
    if (job->options) {
        call->timings.samples = job->options->samples;
        call->timings.samples_room = job->options->samples_room;
    }
    call->timings.sent_ns = job->sent_ns;
    return KOPS_OK;
}

/* Makes everything that the job needs known to the connection; KOPS_OK with *ret_known false: try again. */
static enum kops_code make_known(struct kops_client *c, struct job *job, struct call *call, uint64_t deadline,
                                 bool *ret_known, struct kops_error *e)
{
    *ret_known = false;
    if (job->order && !ordered_current(c)) {
        call_free(&c->calls, call);
        job->order->starts = true; /* the batch ended with the old connection */
        return ordered_renew(c, deadline, e);
    }
    if (job->resolve && !job->resolve(c, job)) {
        call_free(&c->calls, call);
        return job->ensure(c, job, deadline, e);
    }
    *ret_known = true;
    return KOPS_OK;
}

enum kops_code job_send(struct kops_client *c, struct job *job, uint64_t deadline, struct call **ret_call,
                        struct kops_error *e)
{
    enum kops_code r = job->n_fds ? session_settle(c, deadline, e) : KOPS_OK;

    for (unsigned lost = 0; !r && lost < RECOVERY_CONNECTIONS;) {
        const uint32_t generation = c->generation;
        struct outgoing m;
        enum session_sent sent;
        bool known;

        r = session_begin(c, job->fds, job->n_fds, deadline, &m, e);
        if (r)
            return r;
        r = make_known(c, job, m.call, deadline, &known, e);
        if (r || !known) {
            lost += c->generation != generation;
            continue;
        }
        r = prepare(m.call, job, e);
        if (!r && job->order)
            r = ordered_assign(job->order, m.call, e);
        if (r) {
            call_free(&c->calls, m.call);
            return r;
        }
        job->pack(session_out(c, &m), m.call->msgid, job->wire);
        r = session_appended(c, &m, e);
        if (!r && job->order) {
            r = ordered_commit(c, job->order, m.call, e);
            if (r)
                session_take_back(c, &m);
        }
        if (r)
            return r;
        sent = session_send(c, &m, deadline, e);
        if (sent == SESSION_NOT_SENT && !job->order) {
            fail_clear(e);
            lost++;
            continue;
        }
        if (job->order)
            return KOPS_OK; /* the work is on the stream: the next call reports its outcome */
        if (sent == SESSION_SENT)
            *ret_call = m.call;
        return sent == SESSION_SENT ? KOPS_OK : e->code;
    }
    return r ? r : fail(e, KOPS_ERR_CONNECTION_LOST, "the connection was lost again and again");
}

/* ---- waiting ---- */

/* Computes the times between the client's clock and the daemon's. Clocks of different time namespaces are unrelated. */
static void tell_ways(const struct wire_timings *t, uint64_t seen_ns, struct kops_result *result)
{
    const uint64_t replied_ns = result->received_ns + (uint64_t)(result->total_us * 1e3);

    if (!t->sent_ns || !result->received_ns || t->sent_ns > result->received_ns || replied_ns > seen_ns)
        return;
    result->send_us = (double)(result->received_ns - t->sent_ns) / 1e3;
    result->reply_us = (double)(seen_ns - replied_ns) / 1e3;
}

enum kops_code job_finish(struct kops_client *c, struct call *call, struct kops_result *ret_result,
                          struct kops_error *e)
{
    const struct wire_timings *t = &call->timings;

    if (!call->code && ret_result) {
        *ret_result = t->result;
        ret_result->send_us = ret_result->reply_us = NAN;
        if (t->sent_ns)
            tell_ways(t, clock_ns(), ret_result);
    }
    return session_finish(c, call, e);
}

/* Handles a passed deadline. Where the run ends within the grace, the caller gets its outcome. */
static enum kops_code time_out(struct kops_client *c, struct call *call, struct kops_result *ret_result,
                               struct kops_error *e)
{
    uint64_t grace = deadline_in(CANCEL_GRACE_MS);

    session_cancel(c, call);
    if (session_wait(c, call, grace)) {
        if (call->code != KOPS_ERR_CANCELLED)
            return job_finish(c, call, ret_result, e);
        session_finish(c, call, NULL);
        return fail(e, KOPS_ERR_TIMEOUT, "the run did not end in time and was cancelled");
    }
    session_abandon(c, call);
    return fail(e, KOPS_ERR_TIMEOUT,
                "the run did not end in time; it was asked to stop, a kernel that is running may still write");
}

/* Ends a call with a raw reply, which may say, too, that the daemon ends. */
static enum kops_code raw_end(const struct job *job, struct recovery *recovery, struct kops_error *e)
{
    struct kops_error said;

    if (!job->safe || !job->reply || !job->reply->is_error)
        return KOPS_OK;
    wire_reply_error(job->reply, &said);
    if (said.code != KOPS_ERR_SHUTTING_DOWN && !(said.code == KOPS_ERR_DEVICE_LOST && fail_ends_daemon(&said)))
        return KOPS_OK;
    recovery->fate = FATE_ANSWERED;
    *e = said;
    return said.code;
}

static enum kops_code await_once(struct kops_client *c, struct job *job, struct recovery *recovery, const char *what,
                                 uint64_t deadline, struct kops_error *e)
{
    struct call *call;
    enum kops_code r = job_send(c, job, deadline, &call, e);

    if (r)
        return r;
    if (session_wait(c, call, deadline)) {
        r = recovery_finish(c, recovery, call, e);
        return r ? r : raw_end(job, recovery, e);
    }
    session_cancel(c, call);
    session_abandon(c, call);
    return fail(e, KOPS_ERR_TIMEOUT, "%s", what);
}

enum kops_code job_await(struct kops_client *c, struct job *job, const char *what, uint64_t deadline,
                         struct kops_error *e)
{
    struct recovery recovery = {0};
    enum kops_code r;

    do
        r = await_once(c, job, &recovery, what, deadline, e);
    while (r && recovery_again(c, &recovery, job->safe, job->context, deadline, e));
    return r;
}

/* Notes the time at which the caller began to wait. */
static void note_sent(struct job *job)
{
    if (!job->options || !job->options->no_timing)
        job->sent_ns = clock_ns();
}

static enum kops_code run_once(struct kops_client *c, struct job *job, struct recovery *recovery, uint64_t deadline,
                               struct kops_result *ret_result, struct kops_error *e)
{
    struct call *call;
    enum kops_code r = job_send(c, job, deadline, &call, e);

    if (r)
        return r;
    if (!session_wait(c, call, deadline))
        return time_out(c, call, ret_result, e);
    if (!call->code)
        return job_finish(c, call, ret_result, e);
    return recovery_finish(c, recovery, call, e);
}

enum kops_code job_run(struct kops_client *c, struct job *job, uint64_t deadline, struct kops_result *ret_result,
                       struct kops_error *e)
{
    struct recovery recovery = {0};
    enum kops_code r;

    note_sent(job);
    do
        r = run_once(c, job, &recovery, deadline, ret_result, e);
    while (r && recovery_again(c, &recovery, job->safe, job->context, deadline, e));
    return r;
}

enum kops_code job_submit(struct kops_client *c, struct job *job, uint64_t deadline, kops_ticket *ret_ticket,
                          struct kops_error *e)
{
    struct call *call;
    enum kops_code r;

    note_sent(job);
    r = job_send(c, job, deadline, &call, e);
    if (r)
        return r;
    /* Never 0, and a new one each time that a msgid is used again. */
    call->ticket = (kops_ticket)call->uses << 32 | call->msgid;
    *ret_ticket = call->ticket;
    return KOPS_OK;
}

/* ---- on a CUDA stream, and the public half of ordered calls ---- */

/* Ends a call on a stream. The error of an earlier op comes first. */
static enum kops_code leave(struct kops_client *c, struct ordered_stream *stream, enum kops_code r,
                            struct kops_error *e)
{
    enum kops_code before = KOPS_OK;

    ordered_collect(c);
    if (r)
        before = ordered_report(c, e);
    ordered_leave(c, stream);
    return before ? before : r;
}

/* Gathers an op into a batch. Its operands must be known to the connection first. */
static enum kops_code gather(struct kops_client *c, struct job *job, struct ordered_stream *stream, void *cuda_stream,
                             uint64_t deadline, struct kops_error *e)
{
    enum kops_code r = session_connect(c, deadline, e);

    while (!r && job->resolve && !job->resolve(c, job)) {
        r = job->ensure(c, job, deadline, e);
        if (!r)
            r = session_connect(c, deadline, e);
    }
    return r ? r : batch_add(c, stream, cuda_stream, job->run, c->generation, deadline, e);
}

enum kops_code enqueue_work(struct kops_client *c, struct job *job, void *cuda_stream, uint64_t deadline,
                            struct kops_error *e)
{
    struct ordered_work work = {.cuda_stream = cuda_stream,
                                .how = job->how,
                                .raw = job->raw,
                                .starts = true,
                                .waits = true,
                                .n_ops = 1,
                                .name = job->name};
    enum kops_code r = ordered_enter(c, cuda_stream, deadline, &work.stream, e);

    if (r)
        return r;
    if (job->how)
        job->how->no_timing = true;
    if (work.stream->in_batch && job->run)
        return leave(c, work.stream, gather(c, job, work.stream, cuda_stream, deadline, e), e);
    if (work.stream->in_batch) {
        r = batch_flush(c, work.stream, cuda_stream, false, deadline, e);
        batch_join(work.stream, &work);
    }
    job->decode = wire_decode_nothing;
    job->order = &work;
    if (!r)
        r = job_send(c, job, deadline, NULL, e);
    return leave(c, work.stream, r, e);
}

enum kops_code enqueue_check(const struct kops_options *o, struct kops_error *e)
{
    if (o && (o->stream || o->device || o->samples))
        return fail(e, KOPS_ERR_BAD_ARGUMENT,
                    "options.stream, device and samples are not for calls on a CUDA stream: leave them zero");
    return KOPS_OK;
}

enum kops_code kops_batch_begin(kops_client *client, void *cuda_stream, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    const uint64_t deadline = client_deadline(client, 0);
    struct ordered_stream *stream;
    enum kops_code r;

    client_enter(client, e);
    r = ordered_enter(client, cuda_stream, deadline, &stream, e);
    if (!r) {
        if (client->features & FEATURE_SEQUENCE)
            r = batch_begin(client, stream, e);
        else
            r = fail(e, KOPS_ERR_UNSUPPORTED, "the daemon takes no sequences, which batches are sent as");
        ordered_leave(client, stream);
    }
    client_leave(client);
    return r;
}

enum kops_code kops_batch_end(kops_client *client, void *cuda_stream, struct kops_error *ret_error)
{
    struct kops_error unwanted, earlier, *e = ret_error ? ret_error : &unwanted;
    const uint64_t deadline = client_deadline(client, 0);
    struct ordered_stream *stream;
    enum kops_code r, before;

    client_enter(client, e);
    before = ordered_report(client, &earlier); /* the batch ends all the same */
    r = ordered_enter(client, cuda_stream, deadline, &stream, e);
    if (!r) {
        if (stream->in_batch)
            r = batch_end(client, stream, cuda_stream, deadline, e);
        else
            r = fail(e, KOPS_ERR_BAD_ARGUMENT, "no batch is open on this stream");
        ordered_leave(client, stream);
    }
    if (before)
        *e = earlier;
    client_leave(client);
    return before ? before : r;
}

/* Counts the outstanding calls of one stream, or of all (NULL). */
static unsigned outstanding(const struct kops_client *c, const struct ordered_stream *stream)
{
    return stream ? stream->outstanding : c->ordered->outstanding;
}

static enum kops_code synchronize(struct kops_client *c, const struct ordered_stream *stream, uint64_t deadline,
                                  struct kops_error *e)
{
    while (outstanding(c, stream)) {
        session_progress(c, deadline);
        if (outstanding(c, stream) && deadline_passed(deadline))
            return fail(e, KOPS_ERR_TIMEOUT, "the ops on the CUDA stream have not ended yet");
    }
    return ordered_report(c, e);
}

enum kops_code kops_synchronize(kops_client *client, void *cuda_stream, int64_t timeout_ms,
                                struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    const uint64_t deadline = client_deadline(client, timeout_ms);
    struct ordered_stream *stream = NULL;
    enum kops_code r = KOPS_OK;

    client_enter(client, e);
    if (client->ordered) {
        if (session_is_holding(client))
            r = batch_flush_all(client, deadline, e);
        if (!r && (!ordered_find(client, cuda_stream, &stream) || stream))
            r = synchronize(client, stream, deadline, e);
        else if (!r)
            r = ordered_report(client, e);
    }
    client_leave(client);
    return r;
}
