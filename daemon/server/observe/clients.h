/* Connected clients: the method `clients`, and the status line. Thread: loop. */
#ifndef KOPS_SERVER_OBSERVE_CLIENTS_H
#define KOPS_SERVER_OBSERVE_CLIENTS_H

#include "server/peer/connection.h"

/* Whether `viewer` may see the work of user `uid`, or of the identity with that number. */
bool may_see(const struct connection *viewer, uid_t uid);
/* The name of an identity's number; NULL: a user's. */
const char *identity_of(const struct server *s, uid_t number);
/* Whether `viewer` may see the account: a subordinate user sees the account of its owner, which it is charged to. */
bool may_see_account(const struct connection *viewer, const struct account *a);

#endif
