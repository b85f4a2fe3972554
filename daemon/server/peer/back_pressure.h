/* Back-pressure: whether a connection is read. It is not while it has too many requests in flight, or too much of their
 * memory, or does not read its replies; its requests then wait in its socket or ring, the client's own memory. Thread:
 * loop. */
#ifndef KOPS_SERVER_PEER_BACK_PRESSURE_H
#define KOPS_SERVER_PEER_BACK_PRESSURE_H

#include "server/peer/connection.h"

/* Whether it may have more requests now. */
bool connection_may_read(const struct connection *c);
/* Whether to take bytes from its socket, or its ring, to see what comes: also when it has no credit, because some
 * requests need none. */
bool connection_may_look(const struct connection *c);
bool connection_may_look_at_ring(const struct connection *c);
/* It has so many replies to read that it is not read itself. */
bool connection_is_stuck(const struct connection *c);
/* It has sent a part of a message, and the rest would be taken. */
bool connection_has_part(const struct connection *c);
/* Replies that have not gone. */
bool connection_has_output(const struct connection *c);

/* There is output to flush, or input may go on: connection_turn() will see to it in this loop turn. */
void connection_mark_dirty(struct connection *c);

#endif
