/* One message from a client, taken apart down to its params. */
#ifndef KOPS_RPC_MESSAGE_H
#define KOPS_RPC_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rpc/value.h"
#include "util/error.h"

enum { RPC_MAX_FDS = 16, RPC_MAX_DEPTH = 16 };

struct rpc_arena; /* memory that decoded values live in; reused from message to message */

struct rpc_arena *rpc_arena_new(void);
struct rpc_arena *rpc_arena_free(struct rpc_arena *arena); /* NULL is allowed; returns NULL */

struct rpc_message {
    bool notification; /* no reply, msgid is 0 */
    uint32_t msgid;
    const char *method; /* not terminated */
    uint32_t method_length;
    const struct rpc_value *params; /* the map; NULL when params is no array of exactly one map */
    unsigned nfds;                  /* descriptors that it claims */
};

/* Decodes a frame that scan_value() found complete. What the arena held before is gone. Returns -1 for what must close
 * the connection (ERROR_PROTOCOL_ERROR). */
int rpc_message_parse(struct rpc_arena *arena, const unsigned char *data, size_t length,
                      struct rpc_message *ret_message, struct error *e);

#endif
