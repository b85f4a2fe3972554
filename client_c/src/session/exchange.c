#include "exchange.h"

#include "base/fail.h"
#include "receive.h"

enum session_sent exchange_send(struct kops_client *c, const struct exchange *x, struct outgoing *m, uint64_t deadline,
                                struct kops_error *e)
{
    m->call->decode = x->decode;
    m->call->into = x->into;
    x->pack(session_out(c, m), m->call->msgid, x->request);
    return session_appended(c, m, e) ? SESSION_FAILED : session_send(c, m, deadline, e);
}

bool exchange_wait(struct kops_client *c, struct call *call, uint64_t deadline, struct kops_error *e)
{
    if (session_wait(c, call, deadline))
        return true;
    session_abandon(c, call);
    fail(e, KOPS_ERR_TIMEOUT, "the daemon did not reply in time");
    return false;
}

enum kops_code exchange_here(struct kops_client *c, const struct exchange *x, uint64_t deadline, struct kops_error *e)
{
    struct outgoing m;
    enum kops_code r;

    for (;;) {
        if (!client_is_connected(c))
            return fail(e, KOPS_ERR_CONNECTION_LOST, "the daemon closed the connection while it was greeted");
        if (session_await_room(c, deadline))
            break;
        if (deadline_passed(deadline))
            return fail(e, KOPS_ERR_TIMEOUT, "the daemon did not reply in time");
    }
    r = session_reserve(c, &x->fd, x->fd >= 0, &m, e);
    if (r)
        return r;
    if (exchange_send(c, x, &m, deadline, e) != SESSION_SENT || !exchange_wait(c, m.call, deadline, e))
        return e->code;
    return session_finish(c, m.call, e);
}
