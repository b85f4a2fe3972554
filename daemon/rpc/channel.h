/* The daemon's side of a connection's shared memory (proto/ring.h): requests in, replies out, and the bells.
 *
 * Owns the mapping, its ends of the bells, the private copy of bytes that were read, and the replies that have no room
 * yet. Nothing here blocks, whatever the client does: the doorbell (an eventfd, which both sides have open as one file)
 * is watched for edges and never read, and only the daemon has the wake pipe's writing end. Waits for nothing, so that
 * it can be fuzzed. Thread: the owner's. */
#ifndef KOPS_RPC_CHANNEL_H
#define KOPS_RPC_CHANNEL_H

#include "proto/ring.h"
#include "rpc/input.h"
#include "rpc/output.h"
#include "util/waker.h"

/* Descriptors of the client, in the order of hello's reply. */
enum { CHANNEL_MEMORY, CHANNEL_DOORBELL, CHANNEL_WAKE, CHANNEL_FDS };

enum { RPC_CHANNEL_BYTES = RING_PAGE_BYTES + RING_REQUEST_BYTES + RING_REPLY_BYTES }; /* bytes of shared memory */

struct rpc_channel {
    unsigned char *memory;
    struct ring_consumer requests;
    struct ring_producer replies;
    int doorbell;        /* readable edges: the client has written or read something */
    int wake;            /* writing wakes the client */
    struct waker *waker; /* wakes the client on its thread, where the owner set one; else NULL */
    struct rpc_input input;
    struct rpc_output output;
    uint64_t message_start; /* start in `output` of the reply that is being written */
    bool told;              /* the client was told when a reply is likely */
    bool writing;           /* a reply is being written */
};

/* Makes the memory and the bells. Requests have at most `message_bytes` bytes, replies that wait `output_max`. The
 * descriptors are the caller's to send and close. */
int rpc_channel_new(size_t message_bytes, size_t output_max, struct rpc_channel **ret_channel, int ret_fds[CHANNEL_FDS],
                    struct error *e);
/* NULL is allowed; returns NULL. */
struct rpc_channel *rpc_channel_free(struct rpc_channel *channel);

/* Copies the bytes that are there, or a bounded part of them, to `input`. Never RPC_END. */
enum rpc_receive rpc_channel_receive(struct rpc_channel *channel, struct error *e);

/* Tells the client the window of its next reply; the reply withdraws it. */
void rpc_channel_expect(struct rpc_channel *channel, struct wait_window window);

/* Returns the output for the next reply. */
struct rpc_output *rpc_channel_begin(struct rpc_channel *channel, struct rpc_output *socket);
/* Completes the reply that was begun; a reply that cannot go through the ring moves to the socket's output. */
void rpc_channel_settle(struct rpc_channel *channel, struct rpc_output *socket);

/* Writes replies as far as there is room, and wakes the client. 1: all is written; 0: the ring is full, and the
 * doorbell will tell; -1: the client's index is impossible (*e). */
int rpc_channel_flush(struct rpc_channel *channel, struct error *e);

/* Prepares for the daemon's sleep. False: there is something to read (or to complain about) already. */
bool rpc_channel_sleep(struct rpc_channel *channel);
/* Tells the client that the daemon looks at the ring by itself again: it need not ring. */
void rpc_channel_wake(struct rpc_channel *channel);

/* Tells whether the ring has requests, or an index to complain about. */
static inline bool rpc_channel_has(struct rpc_channel *channel)
{
    return ring_available(&channel->requests) != 0;
}

/* Returns the bytes of replies that wait for room. */
static inline size_t rpc_channel_pending(const struct rpc_channel *channel)
{
    return buffer_length(&channel->output.bytes);
}

#endif
