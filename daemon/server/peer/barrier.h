/* Barriers: trim and stats wait until every run that was sent before them has ended. Thread: loop. */
#ifndef KOPS_SERVER_PEER_BARRIER_H
#define KOPS_SERVER_PEER_BARRIER_H

#include "server/peer/request.h"

/* Calls ready(r), which ends the request, in a turn of the connection's, once the runs before it have ended. A client
 * that has not read its replies gets no more of them first. */
void barrier_enqueue(struct request *r, void (*ready)(struct request *r));

/* A run or the connection has ended: sees to it that the connection has its turn. */
void barriers_advance(struct connection *c);

/* In the connection's turn: one of them, as its answer may be long. */
void barriers_step(struct connection *c);

#endif
