/* Access: the users that may connect, and the access classes (use, tune, administer) of methods that each may call. An
 * identity has the classes of its socket, whoever the peer's user is. The kernel is asked for a peer's user and groups
 * once, when it connects. The classes are computed then, and again whenever the lists of [access] change. Thread: loop.
 */
#ifndef KOPS_SERVER_PEER_ACCESS_H
#define KOPS_SERVER_PEER_ACCESS_H

#include "server/peer/request.h"

/* Sets the connection's account, groups and access classes, once its user is known. -1: the user may not connect (*e is
 * sent to the peer), or there is no memory. access_leave() gives back everything, in both cases. */
int access_enter(struct connection *c, struct error *e);
void access_leave(struct connection *c);

/* Whether the connection may call methods of that access class. */
static inline bool access_allows(const struct connection *c, enum access_class class)
{
    return c->access & 1U << class;
}
/* Fills in permission_denied with method and class, and writes a line to the log. Returns -1. */
int access_refuse(struct connection *c, const char *method, enum access_class class, struct error *e);

/* Whether the peer is root or the daemon's own user, which are never refused. Nobody is at the socket of an identity.
 */
bool access_is_owner(const struct connection *c);
/* Whether the peer was in that group when it connected. */
bool access_in_group(const struct connection *c, gid_t group);
/* The isolation of a new connection's kernels: as configured for all, or more for its identity. */
enum isolation access_isolation(const struct connection *c);

/* Computes the access classes anew, after the lists in the configuration have changed. -1: the user may not connect any
 * more (*e is sent to the peer). */
int access_renew(struct connection *c, struct error *e);

/* ---- visibility ---- */

/* Whether `viewer` may see the work of user `uid`, or of the identity with that number. */
bool may_see(const struct connection *viewer, uid_t uid);
/* The name of an identity's number; NULL: a user's. */
const char *identity_of(const struct server *s, uid_t number);
/* Whether `viewer` may see the account: a subordinate user sees the account of its owner, which it is charged to. */
bool may_see_account(const struct connection *viewer, const struct account *a);

#endif
