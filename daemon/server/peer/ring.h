/* Connections' shared memory: which rings are watched, and how. A ring that was busy lately is hot: every turn of the
 * loop looks into it, and its client need not ring. All others sleep until their doorbell rings. */
#ifndef KOPS_SERVER_PEER_RING_H
#define KOPS_SERVER_PEER_RING_H

#include "server/peer/connection.h"

int rings_start(struct server *s, struct error *e);
void rings_stop(struct server *s);
/* After the loop has ended. */
void rings_free(struct server *s);

/* Makes the connection's channel; the descriptors are the caller's to send and close. */
int ring_open(struct connection *c, int ret_fds[CHANNEL_FDS], struct error *e);
/* Gives it back; harmless without one. */
void ring_close(struct connection *c);

/* One look into every hot ring. */
void rings_poll(struct server *s);

/* Before the loop sleeps: every ring that may be read sleeps. False: one has work, and the loop must not sleep. */
bool rings_sleep(struct server *s);

#endif
