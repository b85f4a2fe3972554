/* Polling before sleeping: whether it pays, and a slice of it. */
#ifndef KOPS_SERVER_CONTROL_BUSY_POLL_H
#define KOPS_SERVER_CONTROL_BUSY_POLL_H

#include "server/base/shared.h"

void busy_poll_init(struct server *s);

/* Input came from the connection's socket; the connection ends. */
void recent_socket_used(struct connection *c);
void recent_socket_closed(struct connection *c);

/* Polls rings, devices and the sockets in use for a while, then lets the loop see to everything else. True: the loop
 * must come back without sleeping. */
bool busy_poll_slice(struct server *s);

#endif
