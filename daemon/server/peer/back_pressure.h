/* Back-pressure: whether a connection is read. A connection is paused while it has too many requests in flight, while
 * these take too much memory, or while it does not read its replies. Its requests then wait in its socket or ring,
 * which is the client's own memory. Thread: loop. */
#ifndef KOPS_SERVER_PEER_BACK_PRESSURE_H
#define KOPS_SERVER_PEER_BACK_PRESSURE_H

#include "server/peer/connection.h"

/* Whether the connection may have more requests now. */
bool connection_may_read(const struct connection *c);
/* Whether to take bytes from the connection's socket, or its ring. This may be so without credit, because some requests
 * need none. */
bool connection_may_look(const struct connection *c);
bool connection_may_look_at_ring(const struct connection *c);
/* Whether the client has so many unread replies that the connection is paused: a stuck reader. */
bool connection_is_stuck(const struct connection *c);
/* Whether replies wait to be sent. */
bool connection_has_output(const struct connection *c);

/* Puts the connection in line for connection_turn() in this turn of the loop: it has output to flush, or input may go
 * on. */
void connection_mark_dirty(struct connection *c);

/* User pressure: back-pressure by user. Bytes of requests and replies that wait in the daemon's memory are charged to
 * the user's QUOTA_WAITING; while a user is over it the user is pressed, and its connections are paused.
 *
 * Command lists of runs and sources have charges of their own; this file charges the input and output of connections. A
 * paused connection is not read, and must read its replies. Two connections with partial messages
 * could then wait for each other for ever, so one connection at a time that owes the rest of a message is exempt: it is
 * read all the same. Thread: loop. */

void user_pressure_init(struct server *s);
void user_pressure_stop(struct server *s);

/* Whether the connection's user lets it be read. */
static inline bool user_pressure_admits(const struct connection *c)
{
    return account_has_room(c->account, QUOTA_WAITING) || c->account->exempt == c;
}

/* The connection's input or output has changed. */
void user_pressure_note(struct connection *c);
/* The connection ends. */
void user_pressure_forget(struct connection *c);
/* Resumes the connections of users that have room again. */
void user_pressure_turn(struct server *s);

/* Peer timeouts, for slow peers (limits.peer_timeout_s): a stuck reader does not read the replies that pause it; a
 * partial message lacks its rest. A socket that lacks memory of the kernel's is tried again. Each kind has a list in
 * the order of time. One timer runs only while a list has connections. Thread: loop. */

void peer_timeouts_init(struct server *s);
void peer_timeouts_stop(struct server *s);

/* Call it after a turn of the connection; `sent`: some of its replies were sent. */
void peer_timeouts_note(struct connection *c, bool sent);
/* The limits may have changed. */
void peer_timeouts_reload(struct server *s);
/* The connection is closed. */
void peer_timeouts_forget(struct connection *c);

#endif
