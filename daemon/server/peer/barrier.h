/* Barriers: `trim` and `stats` wait until every run that was sent before them has ended. Thread: loop. */
#ifndef KOPS_SERVER_PEER_BARRIER_H
#define KOPS_SERVER_PEER_BARRIER_H

#include "server/peer/request.h"

/* Calls ready(r), which ends the request, in a turn of the connection's, after the runs before it have ended. A client
 * must read its earlier replies first. */
void barrier_enqueue(struct request *r, void (*ready)(struct request *r));

/* A run or the connection has ended: gives the connection a turn if a barrier is ready. */
void barriers_advance(struct connection *c);

/* In the connection's turn: answers one barrier, as its reply may be long. */
void barriers_step(struct connection *c);

#endif
