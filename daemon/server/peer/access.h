/* Who may connect, and which methods each may call. What a peer is (user, groups) is asked of the kernel once, when it
 * connects; what the lists make of it is computed then and whenever they change. Thread: loop. */
#ifndef KOPS_SERVER_PEER_ACCESS_H
#define KOPS_SERVER_PEER_ACCESS_H

#include "server/peer/request.h"

/* After the peer's user is known: its groups and its account, and what it may do. -1: it may not connect (the error is
 * for it to read), or there is no memory. access_leave() gives back what this took, in every case. */
int access_enter(struct connection *c, struct error *e);
void access_leave(struct connection *c);

/* Whether the connection may call methods of that class. */
static inline bool access_allows(const struct connection *c, enum access_class class)
{
    return c->access & 1U << class;
}
/* Permission_denied with method and class; says so in the log. */
int access_refuse(struct connection *c, const char *method, enum access_class class, struct error *e);

/* Root, or the daemon's own user: they may always. */
bool access_is_owner(const struct connection *c);
/* Whether the peer was of that group when it connected. */
bool access_in_group(const struct connection *c, gid_t group);

/* The lists in the server's configuration are others now: what the connection may do from now on. -1: it may not
 * connect any more (the error is for it to read). */
int access_renew(struct connection *c, struct error *e);

#endif
