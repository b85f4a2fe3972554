/* What of one user's requests and replies waits in the daemon's memory, and who is not read because it is too much.
 *
 * Bodies of runs and sources have charges of their own; here are the bytes of connections. Over quota.waiting_mib none
 * of the user's connections is read, and all must read their replies (server/peer/peer_timeouts.h). Were that all, two
 * messages of which a part has come could wait for each other's end: so one connection at a time that owes the rest of
 * a message is read all the same. Thread: loop. */
#ifndef KOPS_SERVER_PEER_BACKLOG_H
#define KOPS_SERVER_PEER_BACKLOG_H

#include "server/peer/connection.h"

void backlog_init(struct server *s);
void backlog_stop(struct server *s);

/* Whether the connection may be read as far as its user is concerned. */
static inline bool backlog_admits(const struct connection *c)
{
    return account_has_room(c->account, QUOTA_WAITING) || c->account->favoured == c;
}

/* Its input or its output has changed. */
void backlog_note(struct connection *c);
/* It ends. */
void backlog_forget(struct connection *c);
/* Connections go on whose users have room again. */
void backlog_turn(struct server *s);

#endif
