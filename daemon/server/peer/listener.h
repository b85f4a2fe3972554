/* The listening sockets: accept connections, a few a turn, and turn away those that cannot be served. The peers of the
 * first are users; those of each other one have the identity of that socket.
 *
 * A connection for which there is no room is accepted, told why, and closed; a descriptor and a buffer are kept in
 * reserve for that. Where even that fails, nothing is accepted for a moment. Thread: loop. */
#ifndef KOPS_SERVER_PEER_LISTENER_H
#define KOPS_SERVER_PEER_LISTENER_H

#include "server/peer/connection.h"

/* `fd` is the listening socket; the listener owns it, also after a failure. */
int listener_begin(struct server *s, int fd, struct error *e);
/* Begins to accept connections. */
int listener_start(struct server *s, struct error *e);
/* Another socket, whose peers have that identity; after listener_start(). The listener owns `fd`, also after a
 * failure. */
int listener_add(struct server *s, int fd, struct identity *identity, struct error *e);
/* Closes the identity's socket. Its connections stay. */
void listener_remove(struct server *s, const struct identity *identity);
/* Accepts no more; harmless when called again. */
void listener_stop(struct server *s);
/* Whether connections wait to be accepted. */
bool listener_has_newcomers(const struct server *s);
/* Frees the reserved buffer and descriptor. */
void listener_free(struct server *s);

#endif
