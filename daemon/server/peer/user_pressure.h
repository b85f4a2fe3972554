/* What of one user's requests and replies waits in the daemon's memory, and who is not read because it is too much.
 *
 * Bodies of runs and sources have charges of their own; here are the bytes of connections. Over quota.waiting_mib none
 * of the user's connections is read, and all must read their replies (server/peer/peer_timeouts.h). Were that all, two
 * messages of which a part has come could wait for each other's end: so one connection at a time that owes the rest of
 * a message is read all the same. Thread: loop. */
#ifndef KOPS_SERVER_PEER_USER_PRESSURE_H
#define KOPS_SERVER_PEER_USER_PRESSURE_H

#include "server/peer/connection.h"

void user_pressure_init(struct server *s);
void user_pressure_stop(struct server *s);

/* Whether the connection may be read as far as its user is concerned. */
static inline bool user_pressure_admits(const struct connection *c)
{
    return account_has_room(c->account, QUOTA_WAITING) || c->account->exempt == c;
}

/* Its input or its output has changed. */
void user_pressure_note(struct connection *c);
/* It ends. */
void user_pressure_forget(struct connection *c);
/* Connections go on whose users have room again. */
void user_pressure_turn(struct server *s);

#endif
