/* The room of connections, for the rooms above: its start, its part in the loop's turns, its end. Thread: loop. */
#ifndef KOPS_SERVER_PEER_PEERS_H
#define KOPS_SERVER_PEER_PEERS_H

#include "server/peer/connection.h"
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
/* Before the loop sleeps, puts every ring that may be read to sleep. False: a ring has work, and the loop must
 * not sleep. */
bool peers_sleep(struct server *s);

/* Whether the client whose request came last waits for a reply: it is not likely to ask again before. */
bool peers_last_waits(const struct server *s);

/* Applies a changed configuration: access lists and peer timeouts. */
void peers_reload(struct server *s);
/* See server_serve_sockets(). */
void peers_set_sockets(struct server *s, const struct server_socket *sockets, unsigned n);

/* events.c: events of clients, as lines of the log.
 *
 *     connect         debug    pid uid
 *     disconnect      debug    pid uid client why inflight requests errors connected_s
 *     protocol_error  warning  pid uid client why: a request was malformed, and the connection is closed
 *     fault           warning  code uuid op pid uid client why: a device or memory failed while a run used it
 *
 * `uid` is the user of the process, as the kernel says; a peer at an identity's socket also has `identity`. Each kind
 * has at most EVENTS_A_SECOND lines a second; `held_back` is the number of lines of its kind left out since
 * the last one. Thread: loop. */

enum { EVENTS_A_SECOND = 20, REFUSALS_A_SECOND = 1 };

void event_connect(struct connection *c);
void event_protocol_error(struct connection *c, const struct error *e);
void event_disconnect(struct connection *c, const char *why);
/* Writes a line only for errors of a device or of memory. */
void event_fault(const struct connection *c, const char *uuid, const char *op, const struct error *e);
/* A new connection cannot be served: at most one line a second. `fd`: its socket, or -1. */
void event_turned_away(struct server *s, int fd, const struct error *e);

/* Recent sockets: the few connections whose sockets had input last. During the busy poll the daemon reads them itself,
 * which is quicker than the loop's epoll. Thread: loop. */

bool recent_sockets_any(const struct server *s);
/* Whether more sockets were in use lately than are kept here: one call of epoll for all of them is better then. */
bool recent_sockets_are_many(const struct server *s, uint64_t now);
/* Reads the sockets that have input. */
void recent_sockets_read(struct server *s, uint64_t now);
/* The busy poll ends: the loop watches the sockets again. */
void recent_sockets_watch(struct server *s);

#endif
