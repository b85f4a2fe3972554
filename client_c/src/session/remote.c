#include "remote.h"

#include "base/fail.h"
#include "connect.h"
#include "receive.h"
#include "send.h"

enum kops_code remote_ensure(struct kops_client *c, struct remote *r, remote_define *define, void *thing,
                             const char *what, uint64_t deadline, struct kops_error *e)
{
    for (;;) {
        enum kops_code code = session_connect(c, deadline, e);

        if (code || remote_known(c, r))
            return code;
        if (r->defining == c->generation) {
            session_sleep(c, deadline);
        } else {
            r->defining = c->generation;
            code = define(thing, deadline, e);
            r->defining = 0;
            client_changed(c);
            if (code)
                return code;
        }
        if (!remote_known(c, r) && deadline_passed(deadline))
            return fail(e, KOPS_ERR_TIMEOUT, "the %s could not be made known to the daemon in time", what);
    }
}

void remote_release(struct kops_client *c, const struct remote *r, const char *what)
{
    if (remote_known(c, r) && client_is_connected(c))
        session_release(c, what, r->id);
}
