#include "call.h"

#include "base/fail.h"
#include "connect.h"
#include "exchange.h"
#include "recover.h"

enum kops_code session_begin(struct kops_client *c, const int *fds, unsigned n_fds, uint64_t deadline,
                             struct outgoing *ret, struct kops_error *e)
{
    for (;;) {
        enum kops_code r = session_connect(c, deadline, e);

        if (r)
            return r;
        if (session_has_room(c))
            return session_reserve(c, fds, n_fds, ret, e);
        session_await_room(c, deadline);
        if (deadline_passed(deadline))
            return fail(e, KOPS_ERR_TIMEOUT, "%u earlier requests are unanswered, the daemon takes no more",
                        c->calls.inflight);
    }
}

enum kops_code session_settle(struct kops_client *c, uint64_t deadline, struct kops_error *e)
{
    if (!c->unconfirmed || !c->t.ring.memory)
        return KOPS_OK;
    c->unconfirmed = false;
    return session_call(c, wire_pack_plain, "ping", -1, wire_decode_nothing, NULL, deadline, SESSION_ATTEMPTS, e);
}

static enum kops_code exchange_once(struct kops_client *c, const struct exchange *x, struct recovery *recovery,
                                    uint64_t deadline, unsigned connections, struct kops_error *e)
{
    for (;;) {
        struct outgoing m;
        enum session_sent sent;
        enum kops_code r = session_begin(c, &x->fd, x->fd >= 0, deadline, &m, e);

        if (r)
            return r;
        sent = exchange_send(c, x, &m, deadline, e);
        if (sent == SESSION_NOT_SENT && --connections) {
            fail_clear(e);
            continue;
        }
        if (sent != SESSION_SENT || !exchange_wait(c, m.call, deadline, e))
            return e->code;
        return recovery_finish(c, recovery, m.call, e);
    }
}

enum kops_code session_call(struct kops_client *c, wire_pack *pack, const void *request, int fd, wire_decode *decode,
                            void *into, uint64_t deadline, unsigned attempts, struct kops_error *e)
{
    const struct exchange x = {pack, request, fd, decode, into};
    struct recovery recovery = {0};
    enum kops_code r = fd >= 0 ? session_settle(c, deadline, e) : KOPS_OK;

    if (r)
        return r;
    if (attempts == SESSION_HERE)
        return exchange_once(c, &x, &recovery, deadline, 1, e);
    do
        r = exchange_once(c, &x, &recovery, deadline, RECOVERY_CONNECTIONS, e);
    while (r && recovery_again(c, &recovery, attempts == SESSION_ATTEMPTS ? recovery_always : recovery_never, NULL,
                               deadline, e));
    return r;
}
