#include "recover.h"

#include <stdio.h>
#include <string.h>

#include "base/fail.h"
#include "receive.h"

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

/* Waits until the daemon closes the connection, or for a pause before another try. False: the time is over. */
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

/* The daemon ended under the call, or with it. */
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
