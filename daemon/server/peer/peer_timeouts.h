/* Peer timeouts, for slow peers (limits.peer_timeout_s): a stuck reader does not read the replies that pause it; a
 * partial message lacks its rest. A socket that lacks memory of the kernel's is tried again. Each kind has a list in
 * the order of time. One timer runs only while a list has connections. Thread: loop. */
#ifndef KOPS_SERVER_PEER_PEER_TIMEOUTS_H
#define KOPS_SERVER_PEER_PEER_TIMEOUTS_H

#include "server/peer/connection.h"

void peer_timeouts_init(struct server *s);
void peer_timeouts_stop(struct server *s);

/* Call it after a turn of the connection; `sent`: some of its replies were sent. */
void peer_timeouts_note(struct connection *c, bool sent);
/* The limits may have changed. */
void peer_timeouts_reload(struct server *s);
/* The connection is closed. */
void peer_timeouts_forget(struct connection *c);

#endif
