#include "call.h"

#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "connect.h"
#include "session.h"

/* ---- going on after a daemon that ended ---- */

enum { FIRST_PAUSE_MS = 5, LAST_PAUSE_MS = 100 };

bool recovery_always(const void *context)
{
    (void)context;
    return true;
}

bool recovery_never(const void *context)
{
    (void)context;
    return false;
}

enum kops_code recovery_finish(struct kops_client *c, struct recovery *r, struct call *call, struct kops_error *e)
{
    r->sent = true;
    r->fate = call->fate;
    return session_finish(c, call, e);
}

/* Waits until the daemon closes the connection, or for a pause before another try. False: the deadline passed. */
static bool wait_for_another(struct kops_client *c, struct recovery *r, uint64_t deadline)
{
    const uint32_t generation = c->generation;
    uint64_t now = clock_ns(), end;

    if (!r->until) {
        r->until = deadline_in(c->reconnect_timeout_ms);
        r->pause_ms = FIRST_PAUSE_MS;
    }
    if (r->until > deadline)
        r->until = deadline;
    if (now >= r->until)
        return false;
    end = now + (uint64_t)r->pause_ms * 1000000U;
    if (end > r->until)
        end = r->until;
    while (client_is_connected(c) && c->generation == generation && clock_ns() < end)
        session_progress(c, end);
    r->pause_ms = r->pause_ms * 2 < LAST_PAUSE_MS ? r->pause_ms * 2 : LAST_PAUSE_MS;
    return true;
}

static void add(struct kops_error *e, const char *text)
{
    size_t length = strlen(e->message);

    snprintf(e->message + length, sizeof(e->message) - length, "%s", text);
}

/* Tells whether the call may have run before the daemon ended. */
static bool may_have_run(const struct recovery *r, const struct kops_error *e)
{
    if (e->code == KOPS_ERR_DEVICE_LOST)
        return fail_ends_daemon(e);
    return r->fate == FATE_UNANSWERED && (e->code == KOPS_ERR_CONNECTION_LOST || e->code == KOPS_ERR_SHUTTING_DOWN ||
                                          e->code == KOPS_ERR_JOB_TIMEOUT);
}

static bool is_made_again(struct kops_client *c, struct recovery *r, recovery_safe *safe, const void *context,
                          uint64_t deadline, struct kops_error *e)
{
    if (!r->sent || !safe)
        return false;
    r->sent = false;
    if (r->fate == FATE_UNREAD)
        return r->unread++ < RECOVERY_CONNECTIONS;
    if (r->fate == FATE_ANSWERED && e->code == KOPS_ERR_SHUTTING_DOWN)
        return c->reconnect_timeout_ms && wait_for_another(c, r, deadline);
    if (!may_have_run(r, e))
        return false;
    if (r->repeated) {
        add(e, "; the call was repeated once, and failed again");
        return false;
    }
    if (!c->reconnect_timeout_ms)
        return false;
    if (!safe(context)) {
        add(e, "; it is not repeated by itself, since twice may not be the same as once (a kernel of one's own, an "
               "output that is read): look what became of it, and call again");
        return false;
    }
    r->repeated = true;
    return !deadline_passed(deadline);
}

bool recovery_again(struct kops_client *c, struct recovery *r, recovery_safe *safe, const void *context,
                    uint64_t deadline, struct kops_error *e)
{
    if (!is_made_again(c, r, safe, context, deadline, e))
        return false;
    fail_clear(e);
    return true;
}

/* ---- one request on one connection ---- */

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

/* ---- requests ---- */

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
