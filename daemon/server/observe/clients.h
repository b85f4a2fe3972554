/* Connected clients: the method `clients`, and the status line. Thread: loop. */
#ifndef KOPS_SERVER_OBSERVE_CLIENTS_H
#define KOPS_SERVER_OBSERVE_CLIENTS_H

#include "server/peer/connection.h"

/* Whether `viewer` may see the work of user `uid`. */
bool may_see(const struct connection *viewer, uid_t uid);
/* Whether `viewer` may see the account: a subordinate user sees the account of its owner, which it is charged to. */
bool may_see_account(const struct connection *viewer, const struct account *a);

#endif
