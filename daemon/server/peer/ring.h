/* Rings: connections' shared memory, and how each is watched. A ring that was busy lately is hot: every turn of the
 * loop looks into it, and its client need not ring the doorbell. Every other ring sleeps until its doorbell rings.
 * Thread: loop. */
#ifndef KOPS_SERVER_PEER_RING_H
#define KOPS_SERVER_PEER_RING_H

#include "server/peer/connection.h"

int rings_start(struct server *s, struct error *e);
void rings_stop(struct server *s);
/* Call it after the loop's end. */
void rings_free(struct server *s);

/* Makes the connection's channel. The caller sends and closes the descriptors. */
int ring_open(struct connection *c, int ret_fds[CHANNEL_FDS], struct error *e);
/* Frees the channel; harmless without one. */
void ring_close(struct connection *c);

/* Looks into every hot ring. */
void rings_poll(struct server *s);

#endif
