/* Turns a stream of bytes and descriptors into messages, each with its descriptors.
 *
 * Owns the bytes and every descriptor that no message has claimed. Does no I/O, so that it can be fuzzed. Thread: the
 * owner's. */
#ifndef KOPS_RPC_INPUT_H
#define KOPS_RPC_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/scan.h"
#include "rpc/message.h"
#include "util/buffer.h"
#include "util/error.h"

/* Descriptors of one recvmsg, and the byte range of the stream in which their message starts. */
struct rpc_fd_batch {
    uint64_t start, end;
    unsigned count;
    int fds[RPC_MAX_FDS];
};

/* A message may have arrived in part with its descriptors, and the rest of it together with the next message's. */
enum { RPC_MAX_BATCHES = 2 };

struct rpc_input {
    struct buffer bytes;
    uint64_t position; /* place of bytes.data[bytes.start] in the stream */
    struct scan scan;
    bool paused; /* the scan has not reached the end of the bytes: rpc_input_next() continues it */
    size_t limit;
    unsigned n_batches;
    struct rpc_fd_batch batches[RPC_MAX_BATCHES];
    /* Takes unclaimed descriptors; NULL: they are closed. */
    void (*discard)(void *context, const int *fds, unsigned count);
    void *context;
};

void rpc_input_init(struct rpc_input *in, size_t limit);
void rpc_input_free(struct rpc_input *in); /* discards unclaimed descriptors */
void rpc_input_discard(const struct rpc_input *in, const int *fds, unsigned count);

/* Returns the place to read to, and the most bytes; NULL when memory is short. */
unsigned char *rpc_input_reserve(struct rpc_input *in, size_t *ret_room);

/* Adds `n` > 0 bytes that were read to that place, with `n_fds` descriptors, whose ownership passes here even on
 * failure. -1: a violation. */
int rpc_input_commit(struct rpc_input *in, size_t n, const int *fds, unsigned n_fds, struct error *e);

/* Finds the next message. 1: it is *ret_frame; 0: bytes are missing, or (in->paused) this call has looked at its share
 * of values, some 100 µs' worth; -1: a violation. */
int rpc_input_next(struct rpc_input *in, struct rpc_frame *ret_frame, struct error *e);

/* Hands over the descriptors of the message that rpc_input_next() returned; it claims `nfds`. -1: a violation. */
int rpc_input_claim(struct rpc_input *in, unsigned nfds, int *ret_fds, struct error *e);

/* Drops that message. -1: descriptors that it should have claimed are left. */
int rpc_input_consume(struct rpc_input *in, struct error *e);

#endif
