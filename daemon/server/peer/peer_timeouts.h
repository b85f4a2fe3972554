/* How long slow peers are waited for: one that does not read the replies that hold it up, one that does not send the
 * rest of a message, and a socket for which the kernel has no memory. Lists in the order of time and one timer, which
 * runs only while there are such connections. Thread: loop. */
#ifndef KOPS_SERVER_PEER_PEER_TIMEOUTS_H
#define KOPS_SERVER_PEER_PEER_TIMEOUTS_H

#include "server/peer/connection.h"

void peer_timeouts_init(struct server *s);
void peer_timeouts_stop(struct server *s);

/* After a turn of the connection; `sent`: some of its replies went. */
void peer_timeouts_note(struct connection *c, bool sent);
/* The limits may have changed. */
void peer_timeouts_reload(struct server *s);
/* The connection is closed. */
void peer_timeouts_forget(struct connection *c);

#endif
