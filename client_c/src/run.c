/* Running ops: blocking, and by tickets. */
#include <string.h>

#include "buffer.h"
#include "fail.h"
#include "session.h"

enum {
    CANCEL_GRACE_MS = 250, /* how long a timed-out call waits for the outcome of its cancellation */
    MAX_RESOLVE = 8        /* connections that may be lost while buffers are registered, in one call */
};

static const struct kops_tensor *operand(const struct kops_request *r, size_t i)
{
    return i < r->n_inputs ? &r->inputs[i] : &r->outputs[i - r->n_inputs];
}

/* What would make a message that means something else; everything about the op is the daemon's to check. */
static enum kops_code check(const struct kops_client *c, const struct kops_request *r, struct kops_error *e)
{
    size_t n = r->n_inputs + r->n_outputs;

    if (!r->op)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "request.op is NULL");
    if (r->n_inputs > KOPS_MAX_OPERANDS || n > KOPS_MAX_OPERANDS)
        return fail(e, KOPS_ERR_BAD_ARGUMENT, "a run takes at most %d tensors", KOPS_MAX_OPERANDS);
    for (size_t i = 0; i < n; i++) {
        const struct kops_tensor *t = operand(r, i);
        const char *list = i < r->n_inputs ? "inputs" : "outputs";
        size_t place = i < r->n_inputs ? i : i - r->n_inputs;

        if (t->rank > KOPS_MAX_RANK)
            return fail(e, KOPS_ERR_BAD_ARGUMENT, "%s[%zu].rank is %u, more than %d", list, place, t->rank,
                        KOPS_MAX_RANK);
        if (!kops_dtype_size(t->dtype))
            return fail(e, KOPS_ERR_BAD_ARGUMENT, "%s[%zu].dtype is %d, which is no dtype", list, place, (int)t->dtype);
        if (t->buffer && t->buffer->client != c)
            return fail(e, KOPS_ERR_BAD_ARGUMENT, "%s[%zu].buffer belongs to another client", list, place);
        if (t->buffer && t->offset > UINT64_MAX - t->buffer->base_offset)
            return fail(e, KOPS_ERR_BAD_ARGUMENT, "%s[%zu].offset is too large", list, place);
    }
    for (size_t i = 0; i < r->n_attrs; i++)
        if (!r->attrs[i].name || r->attrs[i].type < KOPS_ATTR_BOOL || r->attrs[i].type > KOPS_ATTR_TEXT ||
            (r->attrs[i].type == KOPS_ATTR_TEXT && !r->attrs[i].value.text))
            return fail(e, KOPS_ERR_BAD_ARGUMENT, "attrs[%zu] has no name, type or text", i);
    for (size_t i = 0; i < sizeof(r->options.reserved) / sizeof(r->options.reserved[0]); i++)
        if (r->options.reserved[i])
            return fail(e, KOPS_ERR_BAD_ARGUMENT, "options.reserved is not zero: initialise the struct with {0}");
    return KOPS_OK;
}

/* The ids of all buffers; NULL, or the first buffer that the present connection does not know. */
static struct kops_buffer *resolve(const struct kops_client *c, struct wire_run *w)
{
    size_t n = w->request->n_inputs + w->request->n_outputs;

    for (size_t i = 0; i < n; i++) {
        struct kops_buffer *b = operand(w->request, i)->buffer;

        if (!b)
            continue;
        if (b->generation != c->generation)
            return b;
        w->ids[i] = b->id;
        w->base_offsets[i] = b->base_offset;
    }
    return NULL;
}

/* Sends the run. After KOPS_OK the call is under way, or has ended. */
static enum kops_code send_run(struct kops_client *c, const struct kops_request *request, uint64_t deadline,
                               struct call **ret_call, struct kops_error *e)
{
    struct wire_run w = {.request = request, .base_offsets = {0}};
    unsigned attempt = 1;

    for (unsigned resolved = 0; resolved < MAX_RESOLVE;) {
        struct kops_buffer *unknown;
        struct call *call;
        size_t from;
        enum session_sent sent;
        enum kops_code r = session_begin(c, deadline, &call, e);

        if (r)
            return r;
        unknown = resolve(c, &w);
        if (unknown) {
            call_free(c, call);
            r = buffer_ensure(unknown, deadline, e);
            if (r)
                return r;
            resolved += unknown->generation != c->generation;
            continue;
        }
        call->decode = wire_decode_run;
        call->into = &call->timings;
        call->timings.samples = request->options.samples;
        call->timings.samples_room = request->options.samples_room;
        from = c->t.out.length;
        wire_pack_run(&c->t.out, call->msgid, &w);
        sent = session_send(c, call, from, -1, deadline, e);
        if (sent == SESSION_NOT_SENT && attempt++ < SESSION_ATTEMPTS)
            continue;
        if (sent != SESSION_SENT)
            return e->code;
        *ret_call = call;
        return KOPS_OK;
    }
    return fail(e, KOPS_ERR_CONNECTION_LOST, "the connection was lost again and again");
}

static void ask_to_cancel(struct kops_client *c, const struct call *call)
{
    size_t from = c->t.out.length;

    wire_pack_cancel(&c->t.out, call->msgid);
    if (c->t.out.failed) {
        c->t.out.length = from;
        c->t.out.failed = false;
    }
    session_push(c);
}

static enum kops_code finish_run(struct kops_client *c, struct call *call, struct kops_result *ret_result,
                                 struct kops_error *e)
{
    if (!call->code && ret_result)
        *ret_result = call->timings.result;
    return session_finish(c, call, e);
}

/* The caller's time is over. A run that ends within the grace has its outcome told. */
static enum kops_code time_out(struct kops_client *c, struct call *call, struct kops_result *ret_result,
                               struct kops_error *e)
{
    uint64_t grace = deadline_in(CANCEL_GRACE_MS);

    ask_to_cancel(c, call);
    if (session_wait(c, call, grace)) {
        if (call->code != KOPS_ERR_CANCELLED)
            return finish_run(c, call, ret_result, e);
        session_finish(c, call, NULL);
        return fail(e, KOPS_ERR_TIMEOUT, "the run did not end in time and was cancelled");
    }
    session_abandon(c, call);
    return fail(e, KOPS_ERR_TIMEOUT,
                "the run did not end in time; it was asked to stop, a kernel that is running may still write");
}

enum kops_code kops_run(kops_client *client, const struct kops_request *request, struct kops_result *ret_result,
                        struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    uint64_t deadline = client_deadline(client, request->options.timeout_ms);
    struct call *call;
    enum kops_code r;

    client_enter(client, e);
    r = check(client, request, e);
    if (!r)
        r = send_run(client, request, deadline, &call, e);
    if (!r)
        r = session_wait(client, call, deadline) ? finish_run(client, call, ret_result, e)
                                                 : time_out(client, call, ret_result, e);
    client_leave(client);
    return r;
}

/* ---- tickets ---- */

enum kops_code kops_submit(kops_client *client, const struct kops_request *request, kops_ticket *ret_ticket,
                           struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    uint64_t deadline = client_deadline(client, request->options.timeout_ms);
    struct call *call;
    enum kops_code r;

    client_enter(client, e);
    r = check(client, request, e);
    if (!r)
        r = send_run(client, request, deadline, &call, e);
    if (!r) {
        /* Never 0, and another one each time that a msgid comes back. */
        call->ticket = (kops_ticket)call->uses << 32 | call->msgid;
        *ret_ticket = call->ticket;
    }
    client_leave(client);
    return r;
}

static struct call *find(struct kops_client *c, kops_ticket ticket, struct kops_error *e)
{
    struct call *call = call_by_ticket(c, ticket);

    if (!call)
        fail(e, KOPS_ERR_BAD_ARGUMENT, "no such ticket: it was waited for already, or is another client's");
    return call;
}

enum kops_code kops_wait(kops_client *client, kops_ticket ticket, int64_t timeout_ms, struct kops_result *ret_result,
                         struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    uint64_t deadline = client_deadline(client, timeout_ms);
    struct call *call;
    enum kops_code r;

    client_enter(client, e);
    call = find(client, ticket, e);
    if (!call) {
        r = KOPS_ERR_BAD_ARGUMENT;
    } else if (call->waited) {
        r = fail(e, KOPS_ERR_BAD_ARGUMENT, "another thread waits for this ticket");
    } else {
        call->waited = true;
        if (session_wait(client, call, deadline)) {
            r = finish_run(client, call, ret_result, e);
        } else {
            call->waited = false;
            r = fail(e, KOPS_ERR_TIMEOUT, "the run has not ended yet: wait again, or kops_cancel() it");
        }
    }
    client_leave(client);
    return r;
}

enum kops_code kops_poll(kops_client *client, kops_ticket ticket, bool *ret_done, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct call *call;

    client_enter(client, e);
    call = find(client, ticket, e);
    if (call && call->state != CALL_DONE)
        session_poll(client);
    if (call)
        *ret_done = call->state == CALL_DONE;
    client_leave(client);
    return call ? KOPS_OK : KOPS_ERR_BAD_ARGUMENT;
}

enum kops_code kops_cancel(kops_client *client, kops_ticket ticket, struct kops_error *ret_error)
{
    struct kops_error unwanted, *e = ret_error ? ret_error : &unwanted;
    struct call *call;

    client_enter(client, e);
    call = find(client, ticket, e);
    if (call && call->state == CALL_SENT)
        ask_to_cancel(client, call);
    client_leave(client);
    return call ? KOPS_OK : KOPS_ERR_BAD_ARGUMENT;
}
