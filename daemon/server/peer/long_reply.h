/* Long replies: `stats`, `clients` and `metrics`. Each is built in pieces, in the turns of the connection that asked,
 * in a buffer of its own, and is sent when it is whole. One of a user's is built at a time; a client that has not read
 * its replies gets none. A piece tells how things are when it is built: a row is right in itself. Thread: loop. */
#ifndef KOPS_SERVER_PEER_LONG_REPLY_H
#define KOPS_SERVER_PEER_LONG_REPLY_H

#include "server/peer/request.h"

struct long_reply {
    struct request *request;
    bool (*step)(struct long_reply *reply); /* builds the next piece; true: that was the last one */
    struct rpc_output out;                  /* the result */
    bool failed;                            /* there was no memory for it */
    void *state;                            /* the builder's own; NULL until its first piece makes it */
    void (*free_state)(void *state);        /* called with it, however the reply ends; NULL without */
};

/* Answers the request in the connection's turns. `first` builds the first piece, and sets `step`, state and free_state.
 */
void long_reply_enqueue(struct request *r, bool (*first)(struct long_reply *reply));

/* Builds the next pieces of what the connection has asked for, until its time is over. */
void long_replies_step(struct connection *c);

/* Whether the connection has something to build that does not wait for its user's other connections. */
bool long_replies_may_go_on(const struct connection *c);

/* The connection has ended. */
void long_replies_abandon(struct connection *c);

#endif
