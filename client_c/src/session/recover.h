/* Going on after a daemon that ended: whether a blocking call that failed is sent once more. Lock held; may drop it
 * while it waits.
 *
 * A request that was refused because the daemon ends never ran: it is sent again until one takes it, as long as the
 * client's reconnect timeout. So is one that a dead daemon never read. A request whose reply did not come, or that
 * failed with the device, may have run: it is sent again once, where running twice does no harm. */
#ifndef KOPS_CLIENT_RECOVER_H
#define KOPS_CLIENT_RECOVER_H

#include "client.h"

/* Connections that may end, in one try of a call, before the request is sent whole. */
enum { RECOVERY_CONNECTIONS = 8 };

/* Of one blocking call. Zeroed at its begin. */
struct recovery {
    bool sent; /* the last try was; */
    enum call_fate fate;
    bool repeated;
    unsigned unread;
    unsigned pause_ms;
    uint64_t until; /* until then a daemon that refuses is asked again; 0: none has refused yet */
};

/* The outcome of the call, which goes back. */
enum kops_code recovery_finish(struct kops_client *c, struct recovery *r, struct call *call, struct kops_error *e);

/* Whether the call, which failed with *e, is to be made again; if not, *e says why. `safe` is asked at most once; NULL:
 * the call is never made again, since the binding decides. */
typedef bool recovery_safe(const void *context);
bool recovery_again(struct kops_client *c, struct recovery *r, recovery_safe *safe, const void *context,
                    uint64_t deadline, struct kops_error *e);

/* For requests that do no harm when they reach the daemon twice, and for those that always may. */
bool recovery_always(const void *context);
bool recovery_never(const void *context);

#endif
