/* Messages on their way out: one run of bytes, with descriptors attached to message starts.
 * Owns the bytes and the descriptors until they are sent. Thread: the owner's. */
#ifndef KOPS_RPC_OUTPUT_H
#define KOPS_RPC_OUTPUT_H

#include <stdint.h>

#include "util/buffer.h"
#include "util/error.h"

enum { RPC_OUTPUT_MAX_ATTACHMENTS = 64 };

struct rpc_output {
    struct buffer bytes;
    uint64_t position; /* place of bytes.data[bytes.start] in the stream */
    unsigned n_attachments;
    struct {
        uint64_t start, end; /* range of the message in the stream */
        int fd;
    } attachments[RPC_OUTPUT_MAX_ATTACHMENTS];
};

void rpc_output_init(struct rpc_output *out, size_t max);
void rpc_output_free(struct rpc_output *out);

/* Attaches `fd` (ownership passes) to the message that was just completed, which began when rpc_output_position() was
 * `start`. Returns -1, with the descriptor closed, when too many wait already. */
int rpc_output_attach(struct rpc_output *out, uint64_t start, int fd);

/* Returns the stream's position after everything written so far. */
static inline uint64_t rpc_output_position(const struct rpc_output *out)
{
    return out->position + buffer_length(&out->bytes);
}

/* Moves the last `length` bytes, which have no descriptors, to the end of `to`. */
void rpc_output_move(struct rpc_output *from, size_t length, struct rpc_output *to);

/* Sends what the socket takes. 1: all is sent; 0: the socket is full; RPC_OUTPUT_LATER: the kernel has no memory for it
 * now, and polling does not tell when it will; -1: the peer is gone. */
enum { RPC_OUTPUT_LATER = 2 };
int rpc_output_flush(struct rpc_output *out, int socket);

/* Write one message at the end. Strings are UTF-8. A failure (no memory, over the maximum) sets out->bytes.failed,
 * which stays. */
void rpc_write_nil(struct rpc_output *out);
void rpc_write_bool(struct rpc_output *out, bool value);
void rpc_write_uint(struct rpc_output *out, uint64_t value);
void rpc_write_int(struct rpc_output *out, int64_t value);
void rpc_write_double(struct rpc_output *out, double value);
void rpc_write_text(struct rpc_output *out, const char *text);
/* Replaces bytes of a foreign text that are not UTF-8 by '?'. */
void rpc_make_text(char *text);
void rpc_write_any_text(struct rpc_output *out, const char *text);
void rpc_write_array(struct rpc_output *out, uint32_t count);
void rpc_write_map(struct rpc_output *out, uint32_t count);

/* Sets the length of an array of UINT32_MAX values, whose head ended where buffer_length(&out->bytes) was `at`. Nothing
 * may have been flushed since. */
void rpc_patch_array_head(struct rpc_output *out, size_t at, uint32_t n);
/* Writes a value by its bytes, which were scanned. */
void rpc_write_raw(struct rpc_output *out, const void *bytes, size_t length);

/* Writes `[1, msgid, nil,`; the result must follow. */
void rpc_write_result(struct rpc_output *out, uint32_t msgid);
void rpc_write_error(struct rpc_output *out, uint32_t msgid, const struct error *e);
/* Writes an error response with two more details. `log` is any text: see rpc_write_any_text(). */
void rpc_write_error_log(struct rpc_output *out, uint32_t msgid, const struct error *e, const char *reason,
                         const char *log);
/* Writes `[2, "error", [{…}]]`. */
void rpc_write_error_notification(struct rpc_output *out, const struct error *e);

#endif
