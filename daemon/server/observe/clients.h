/* Who is connected: the methods `clients` and `metrics`, and the line that says how the daemon does. Thread: loop. */
#ifndef KOPS_SERVER_OBSERVE_CLIENTS_H
#define KOPS_SERVER_OBSERVE_CLIENTS_H

#include "server/peer/connection.h"

/* Whether `viewer` may see what `uid` does. */
bool may_see(const struct connection *viewer, uid_t uid);
/* Whether `viewer` may see what is counted there: a subordinate user sees its owner's account, which it is charged to.
 */
bool may_see_account(const struct connection *viewer, const struct account *a);

#endif
