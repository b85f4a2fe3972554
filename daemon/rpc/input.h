/* Turns a stream of bytes and descriptors into messages, each with its descriptors, and takes messages apart down
 * to their params.
 *
 * Owns the bytes and every descriptor that no message has claimed. Does no I/O but in rpc_socket_receive(), so that it
 * can be fuzzed. Thread: the owner's. */
#ifndef KOPS_RPC_INPUT_H
#define KOPS_RPC_INPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/scan.h"
#include "rpc/value.h"
#include "util/buffer.h"
#include "util/error.h"

enum {
    RPC_MAX_FDS = 16,
    RPC_MAX_DEPTH = 16,
    RPC_MAX_VALUES = 128 * 1024 /* in a message: more than any request needs, decoded within 1 ms */
};

struct rpc_frame {
    const unsigned char *data; /* valid until rpc_input_consume() */
    size_t length;
    uint64_t values; /* values in the message, arrays and maps included */
};

/* A message from a client, taken apart down to its params. */
struct rpc_message {
    bool notification; /* no reply, msgid is 0 */
    uint32_t msgid;
    const char *method; /* not terminated */
    uint32_t method_length;
    const struct rpc_value *params; /* the map; NULL when params is no array of exactly one map */
    const unsigned char *raw;       /* the map's bytes; NULL where params is */
    size_t raw_length;
    unsigned nfds;   /* descriptors that the message claims */
    uint64_t values; /* values of the frame; with more than RPC_MAX_VALUES params are not decoded, and NULL */
};

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

/* Takes a complete frame apart. Returns -1 for a frame that must close the connection (ERROR_PROTOCOL_ERROR). */
int rpc_message_parse(const struct rpc_frame *frame, struct rpc_message *ret_message, struct error *e);

/* ---- a client's socket ---- */

enum rpc_receive {
    RPC_RECEIVED,
    RPC_WOULD_BLOCK,
    RPC_END,      /* end of file, or the peer is gone */
    RPC_VIOLATION /* *e is set */
};

/* Receives once into `in`. *ret_full: the socket may hold more. */
enum rpc_receive rpc_socket_receive(int socket, struct rpc_input *in, bool *ret_full, struct error *e);

#endif
