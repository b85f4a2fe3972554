/* A message from a client, taken apart down to its params. */
#ifndef KOPS_RPC_MESSAGE_H
#define KOPS_RPC_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rpc/value.h"
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

/* Takes a complete frame apart. Returns -1 for a frame that must close the connection (ERROR_PROTOCOL_ERROR). */
int rpc_message_parse(const struct rpc_frame *frame, struct rpc_message *ret_message, struct error *e);

#endif
