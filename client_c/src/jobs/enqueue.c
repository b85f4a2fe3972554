/* The public half of ordered calls. */
#include "enqueue.h"

#include "base/fail.h"
#include "batch.h"
#include "session/connect.h"
#include "session/session.h"

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
