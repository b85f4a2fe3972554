/* The room of connections, as the rooms above make it and end it. Thread: loop. */
#ifndef KOPS_SERVER_PEER_PEERS_H
#define KOPS_SERVER_PEER_PEERS_H

#include "server/peer/request.h"

/* Opens the room on a listening socket, which passes here also on failure; `methods`, METHOD_COUNT of them, and
 * `parts`, which ends with NULL, live as long as the server. Needs no loop. */
int peers_new(struct server *s, int fd, const struct method_entry *methods, const struct connection_part *const *parts,
              struct error *e);
/* After the loop was made: its timers and doorbells. */
int peers_start(struct server *s, struct error *e);
/* The loop ends: closes the room's handles. */
void peers_stop(struct server *s);
/* After the loop's end. NULL is allowed. */
void peers_free(struct server *s);

/* The parts of a turn of the loop: looks into rings, lets users go on who have room again, serves what waits. */
void peers_poll(struct server *s);
void peers_serve(struct server *s);
/* Before the loop sleeps. False: a ring has work, and the loop must not sleep. */
bool peers_sleep(struct server *s);

/* The configuration has changed: who may connect, and for how long slow peers are waited for. */
void peers_reload(struct server *s);

#endif
