#include "exchange.h"

#include "base/fail.h"

enum kops_code exchange_here(struct kops_client *c, uint32_t generation, const struct exchange *x, uint64_t deadline,
                             struct kops_error *e)
{
    struct outgoing m;
    enum kops_code r;

    for (;;) {
        if (!client_is_connected(c) || c->generation != generation)
            return fail(e, KOPS_ERR_CONNECTION_LOST, "the connection ended before the request was sent");
        if (session_has_room(c))
            break;
        session_await_room(c, deadline);
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
