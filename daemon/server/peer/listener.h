/* Newcomers: taking connections, a few a turn, and turning away those that cannot be served.
 *
 * Whoever connects is taken off the queue, told why and closed where there is no room for it; for that a descriptor and
 * a buffer are kept. Where not even that works, nothing is accepted for a moment. Thread: loop. */
#ifndef KOPS_SERVER_PEER_LISTENER_H
#define KOPS_SERVER_PEER_LISTENER_H

#include "server/peer/connection.h"

/* `fd` is the listening socket; it passes here also on failure. */
int listener_begin(struct server *s, int fd, struct error *e);
/* From now on connections are accepted. */
int listener_start(struct server *s, struct error *e);
/* No more of them; harmless when it was called before. */
void listener_stop(struct server *s);
/* When nothing is left to stop: the kept buffer and descriptor. */
void listener_free(struct server *s);

#endif
