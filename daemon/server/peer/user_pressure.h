/* User pressure: back-pressure by user. Bytes of requests and replies that wait in the daemon's memory are charged to
 * the user's QUOTA_WAITING; while a user is over it the user is pressed, and its connections are paused.
 *
 * Command lists of runs and sources have charges of their own; this file charges the input and output of connections. A
 * paused connection is not read, and must read its replies (peer_timeouts.h). Two connections with partial messages
 * could then wait for each other for ever, so one connection at a time that owes the rest of a message is exempt: it is
 * read all the same. Thread: loop. */
#ifndef KOPS_SERVER_PEER_USER_PRESSURE_H
#define KOPS_SERVER_PEER_USER_PRESSURE_H

#include "server/peer/connection.h"

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

#endif
