/* Events of clients, as lines of the log.
 *
 *     connect         debug    pid uid
 *     disconnect      debug    pid uid client why inflight requests errors connected_s
 *     protocol_error  warning  pid uid client why: a request was malformed, and the connection is closed
 *     fault           warning  code uuid op pid uid client why: a device or memory failed while a run used it
 *
 * `uid` is the user of the process, as the kernel says; a peer at an identity's socket also has `identity`. Each kind
 * has at most EVENTS_A_SECOND lines a second; `held_back` is the number of lines of its kind left out since
 * the last one. Thread: loop. */
#ifndef KOPS_SERVER_PEER_EVENTS_H
#define KOPS_SERVER_PEER_EVENTS_H

#include "server/peer/connection.h"

enum { EVENTS_A_SECOND = 20, REFUSALS_A_SECOND = 1 };

void event_connect(struct connection *c);
void event_protocol_error(struct connection *c, const struct error *e);
void event_disconnect(struct connection *c, const char *why);
/* Writes a line only for errors of a device or of memory. */
void event_fault(const struct connection *c, const char *uuid, const char *op, const struct error *e);
/* A new connection cannot be served: at most one line a second. `fd`: its socket, or -1. */
void event_turned_away(struct server *s, int fd, const struct error *e);

#endif
