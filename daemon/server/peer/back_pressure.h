/* Back-pressure: whether a connection is read. A connection is paused while it has too many requests in flight, while
 * these take too much memory, or while it does not read its replies. Its requests then wait in its socket or ring,
 * which is the client's own memory. Thread: loop. */
#ifndef KOPS_SERVER_PEER_BACK_PRESSURE_H
#define KOPS_SERVER_PEER_BACK_PRESSURE_H

#include "server/peer/connection.h"

/* Whether the connection may have more requests now. */
bool connection_may_read(const struct connection *c);
/* Whether to take bytes from the connection's socket, or its ring. This may be so without credit, because some requests
 * need none. */
bool connection_may_look(const struct connection *c);
bool connection_may_look_at_ring(const struct connection *c);
/* Whether the client has so many unread replies that the connection is paused: a stuck reader. */
bool connection_is_stuck(const struct connection *c);
/* Whether a partial message has come whose rest would be read. */
bool connection_has_part(const struct connection *c);
/* Whether replies wait to be sent. */
bool connection_has_output(const struct connection *c);

/* Puts the connection in line for connection_turn() in this turn of the loop: it has output to flush, or input may go
 * on. */
void connection_mark_dirty(struct connection *c);

#endif
