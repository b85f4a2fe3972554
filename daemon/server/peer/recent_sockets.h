/* The few connections whose sockets had input last. While the daemon polls it reads these itself, which is quicker than
 * the loop's epoll. Thread: loop. */
#ifndef KOPS_SERVER_PEER_RECENT_SOCKETS_H
#define KOPS_SERVER_PEER_RECENT_SOCKETS_H

#include "server/peer/connection.h"

/* The connection's socket had input. */
void recent_socket_used(struct connection *c);
/* The connection ends. */
void recent_socket_closed(struct connection *c);

bool recent_sockets_any(const struct server *s);
/* Whether more sockets than are kept were in use lately: epoll asks for all of them in one call, and is better. */
bool recent_sockets_are_many(const struct server *s, uint64_t now);
/* Reads those that have something. */
void recent_sockets_read(struct server *s, uint64_t now);
/* Polling ends: the loop watches them again. */
void recent_sockets_watch(struct server *s);

#endif
