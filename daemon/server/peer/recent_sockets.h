/* Recent sockets: the few connections whose sockets had input last. During the busy poll the daemon reads them itself,
 * which is quicker than the loop's epoll. Thread: loop. */
#ifndef KOPS_SERVER_PEER_RECENT_SOCKETS_H
#define KOPS_SERVER_PEER_RECENT_SOCKETS_H

#include "server/peer/connection.h"

/* The connection's socket had input. */
void recent_socket_used(struct connection *c);
/* The connection ends. */
void recent_socket_closed(struct connection *c);

bool recent_sockets_any(const struct server *s);
/* Whether more sockets were in use lately than are kept here: one call of epoll for all of them is better then. */
bool recent_sockets_are_many(const struct server *s, uint64_t now);
/* Reads the sockets that have input. */
void recent_sockets_read(struct server *s, uint64_t now);
/* The busy poll ends: the loop watches the sockets again. */
void recent_sockets_watch(struct server *s);

#endif
