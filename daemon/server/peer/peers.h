/* The room of connections, for the rooms above: its start, its part in the loop's turns, its end. Thread: loop. */
#ifndef KOPS_SERVER_PEER_PEERS_H
#define KOPS_SERVER_PEER_PEERS_H

#include "server/peer/request.h"

/* Opens the room on the listening socket `fd`, which the room owns, also after a failure. `methods`, METHOD_COUNT of
 * them, and `parts`, which ends with NULL, live as long as the server. Needs no loop yet. */
int peers_new(struct server *s, int fd, const struct method_entry *methods, const struct connection_part *const *parts,
              struct error *e);
/* Starts timers and doorbells, once the loop exists. */
int peers_start(struct server *s, struct error *e);
/* Closes the room's handles: the loop is about to end. */
void peers_stop(struct server *s);
/* Call it after the loop's end. NULL is allowed. */
void peers_free(struct server *s);

/* Parts of a turn of the loop. peers_poll() looks into rings; peers_serve() serves connections that wait for their
 * turn, and then resumes paused connections of users who have room again. */
void peers_poll(struct server *s);
void peers_serve(struct server *s);
/* ring.c: before the loop sleeps, puts every ring that may be read to sleep. False: a ring has work, and the loop must
 * not sleep. */
bool peers_sleep(struct server *s);

/* Whether the client whose request came last waits for a reply: it is not likely to ask again before. */
bool peers_last_waits(const struct server *s);

/* Applies a changed configuration: access lists and peer timeouts. */
void peers_reload(struct server *s);
/* See server_serve_sockets(). */
void peers_set_sockets(struct server *s, const struct server_socket *sockets, unsigned n);

#endif
