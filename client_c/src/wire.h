/* MessagePack on both sides of the protocol: the only users of msgpack-c in this library.
 *
 * wire_pack.c appends requests to a struct bytes, wire_unpack.c takes replies apart, wire_info.c reads the two big ones
 * (hello, stats). Requests name nothing but plain values: buffers are resolved to ids before. Bytes are
 * checked by proto/scan.h before they come here. Thread: any; a decoder serves one at a time. */
#ifndef KOPS_CLIENT_WIRE_H
#define KOPS_CLIENT_WIRE_H

#include <kops/kops.h>

#include "arena.h"
#include "bytes.h"

struct msgpack_object;

enum { WIRE_PROTOCOL = 1, WIRE_MAX_FDS = 16, WIRE_HANDLE_SIZE = 64 };

/* ---- requests. The last argument of each is what session_call() passes on. ---- */

typedef void wire_pack(struct bytes *out, uint32_t msgid, const void *request);

struct wire_register {
    const char *kind;
    uint64_t size;
    const unsigned char *handle; /* cuda_ipc, else NULL */
    uint64_t alloc_id;
    bool fd;            /* one descriptor goes with the message */
    const char *device; /* NULL: none */
    enum kops_access access;
};

struct wire_alloc {
    uint64_t size;
    const char *device; /* NULL: the default */
};

struct wire_run {
    const struct kops_request *request;
    uint64_t ids[KOPS_MAX_OPERANDS];          /* buffer ids, inputs then outputs */
    uint64_t base_offsets[KOPS_MAX_OPERANDS]; /* added to the tensors' */
};

wire_pack wire_pack_hello;    /* const char *: the client's name */
wire_pack wire_pack_ping;     /* NULL */
wire_pack wire_pack_register; /* struct wire_register */
wire_pack wire_pack_alloc;    /* struct wire_alloc */
wire_pack wire_pack_run;      /* struct wire_run */
wire_pack wire_pack_trim;     /* NULL */
wire_pack wire_pack_stats;    /* struct kops_stats_filter */

/* Notifications: carried out, never answered. */
void wire_pack_release(struct bytes *out, uint64_t buffer);
void wire_pack_cancel(struct bytes *out, uint32_t msgid);

/* ---- replies ---- */

enum wire_kind { WIRE_RESPONSE, WIRE_ERROR_NOTIFICATION, WIRE_OTHER_NOTIFICATION };

struct wire_message {
    enum wire_kind kind;
    uint32_t msgid;
    const struct msgpack_object *error;  /* NULL: none */
    const struct msgpack_object *result; /* NULL where there is an error */
    unsigned nfds;                       /* what the result claims */
};

struct wire_decoder;

struct wire_decoder *wire_decoder_new(void);
struct wire_decoder *wire_decoder_free(struct wire_decoder *d);

/* Takes one whole message apart; what it returns points into `data` and the decoder, until the next call. Returns NULL,
 * or a sentence that says what is wrong with the bytes. */
const char *wire_parse(struct wire_decoder *d, const char *data, size_t length, struct wire_message *ret_message);

/* Fills *e (not NULL) from an error map; a malformed one becomes bad_reply. */
void wire_decode_error(const struct msgpack_object *error, struct kops_error *e);

/* Reads a result. `fds` are the message's own: what is kept is replaced by -1. Returns false when the result lacks
 * something. */
typedef bool wire_decode(const struct msgpack_object *result, int *fds, unsigned nfds, void *into);

struct wire_buffer {
    uint64_t id, size;
    bool vmm; /* alloc: device memory */
    int fd;   /* alloc: the receiver's; register: -1 */
};

struct wire_timings {
    struct kops_result result;
    double *samples; /* NULL: not wanted */
    size_t samples_room;
};

struct wire_info {
    struct kops_info info;
    struct arena arena;
};

struct wire_stats {
    struct kops_stats stats; /* first: a kops_stats pointer is one to this */
    struct arena arena;
};

wire_decode wire_decode_nothing;
wire_decode wire_decode_register; /* struct wire_buffer */
wire_decode wire_decode_alloc;    /* struct wire_buffer */
wire_decode wire_decode_run;      /* struct wire_timings */
wire_decode wire_decode_trim;     /* uint64_t: bytes */
wire_decode wire_decode_info;     /* struct wire_info */
wire_decode wire_decode_limits;   /* struct kops_limits: hello's limits alone */
wire_decode wire_decode_stats;    /* struct wire_stats */

#endif
