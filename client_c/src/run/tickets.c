/* Work that was submitted: waiting for it, looking at it, cancelling it. */
#include "base/fail.h"
#include "jobs/job.h"
#include "session/receive.h"
#include "session/send.h"

static struct call *find(struct kops_client *c, kops_ticket ticket, struct kops_error *e)
{
    struct call *call = call_by_ticket(&c->calls, ticket);

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
            r = job_finish(client, call, ret_result, e);
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
        session_cancel(client, call);
    client_leave(client);
    return call ? KOPS_OK : KOPS_ERR_BAD_ARGUMENT;
}
