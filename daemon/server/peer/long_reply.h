/* Long replies: `stats`, `clients` and `metrics`. A long reply is built in pieces, in the turns of the connection that
 * asked for it, in a buffer of its own, and is sent when it is whole. Each user has one built at a time. A client that
 * has not read its earlier replies gets none. A piece shows the state at the time it is built: each row is consistent
 * in itself. Thread: loop. */
#ifndef KOPS_SERVER_PEER_LONG_REPLY_H
#define KOPS_SERVER_PEER_LONG_REPLY_H

#include "server/peer/request.h"

struct long_reply {
    struct request *request;
    bool (*step)(struct long_reply *reply); /* builds the next piece; true: that was the last one */
    struct rpc_output out;                  /* the result */
    bool failed;                            /* no memory for the reply */
    void *state;                            /* the builder's own; NULL until its first piece makes it */
    void (*free_state)(void *state);        /* frees `state`, however the reply ends; NULL: nothing to free */
};

/* Answers the request in the connection's turns. `first` builds the first piece, and sets step, state and
 * free_state. */
void long_reply_enqueue(struct request *r, bool (*first)(struct long_reply *reply));

/* Builds the next pieces of the connection's long reply, until its time is over. */
void long_replies_step(struct connection *c);

/* Whether the connection has a long reply to build that does not wait for the user's other connections. */
bool long_replies_may_go_on(const struct connection *c);

/* The connection has ended: abandons its long replies. */
void long_replies_abandon(struct connection *c);

#endif
