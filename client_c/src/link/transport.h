/* A connection's streams: bytes out, whole messages and their descriptors in.
 *
 * A connection has a socket, and beside it shared memory where both sides want it. The transport knows nothing of
 * requests. It owns the socket, the shared memory, all buffers and every received descriptor that was not claimed. Its
 * functions are called by one thread at a time; only transport_receive(), which touches the receive half alone, may run
 * beside transport_send(). */
#ifndef KOPS_CLIENT_TRANSPORT_H
#define KOPS_CLIENT_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "codec/scan.h"
#include "proto/ring.h"

/* The client's side of a connection's shared memory: both rings and both bells (proto/ring.h, PROTOCOL.md).
 *
 * The link owns the mapping and the two eventfds. The sending half (requests) and the receiving half (replies) belong
 * to one thread each at a time, as the transport's do. No value that the daemon writes there is trusted. */

/* The daemon's offer: descriptors that become the link's, and the size of each ring. */
struct ring_offer {
    int fd, doorbell, wake;
    uint64_t request_bytes, reply_bytes;
};

struct ring_link {
    void *memory; /* NULL: no shared memory */
    size_t size;
    int doorbell, wake; /* -1 without memory */
    struct ring_producer requests;
    struct ring_consumer replies;
};

/* Maps the memory and takes the descriptors, also on failure. Returns NULL, or a sentence that says why
 * they are wrong. */
const char *ring_link_open(struct ring_link *l, const struct ring_offer *offer);

/* Tells whether the daemon has not yet read up to the place `end` of the request ring's stream. */
bool ring_link_unread(const struct ring_link *l, uint64_t end);

/* Asks to be woken when there is room again. False: there is room already. */
bool ring_link_want_room(struct ring_link *l);

enum {
    TRANSPORT_MESSAGE_MAX = 16 << 20, /* longest reply; stats and samples are the big ones */
    TRANSPORT_MAX_BATCHES = 4,
    TRANSPORT_MAX_FDS = 16 /* descriptors of one message */
};

/* Descriptors that came with one recvmsg, and the stream positions that it returned. */
struct fd_batch {
    uint64_t from, to;
    unsigned n;
    int fds[TRANSPORT_MAX_FDS];
};

enum stream { STREAM_SOCKET, STREAM_RING, STREAMS };

/* bytes.data[sent .. bytes.length) is still to be sent */
struct outbox {
    struct bytes bytes;
    size_t sent;
};

/* data[start .. end) was received and not yet taken */
struct inbox {
    char *data;
    size_t start, end, capacity;
    struct scan scan; /* scan of the message that begins at data[start] */
};

struct transport {
    int fd; /* -1: not connected */
    struct ring_link ring;
    struct outbox out[STREAMS];
    struct inbox in[STREAMS];
    enum stream taking; /* the stream whose message transport_next() returned */

    /* the socket's receiving side */
    uint64_t position; /* place in the stream where the inbox starts */
    struct fd_batch batches[TRANSPORT_MAX_BATCHES];
    unsigned n_batches;
    int64_t receive_timeout_us; /* the present value of SO_RCVTIMEO; 0: none */
    bool polled_in_vain;        /* busy polling in the last wait found nothing */
    uint64_t crowded_ns;        /* time that waits take while many clients wait (wait.h); 0: not known */
};

enum transport_result { TRANSPORT_OK, TRANSPORT_TIMEOUT, TRANSPORT_CLOSED, TRANSPORT_BROKEN, TRANSPORT_NO_MEMORY };

void transport_init(struct transport *t);

/* Connects; returns 0 or an errno. Needs no transport, and no lock. */
int transport_dial(const char *path, int64_t timeout_ms, int *ret_fd);

/* Takes over the descriptor of transport_dial(). The transport is not connected before. */
void transport_adopt(struct transport *t, int fd);

/* Closes the socket, the shared memory and unclaimed descriptors, empties the buffers, keeps their memory. */
void transport_close(struct transport *t);

void transport_free(struct transport *t);

/* Sends bytes.data[sent .. until) of a stream without blocking; on the socket, the descriptors with the first byte.
 * Returns the bytes sent, -EAGAIN when the stream is full, or another negative errno. */
ssize_t transport_send(struct transport *t, enum stream stream, size_t until, const int *fds, unsigned n_fds);

/* Waits until something was received on either stream. Polls busily for poll_us first. A deadline of 0 does not wait.
 * TRANSPORT_TIMEOUT may come early, when a sender should look whether there is room. TRANSPORT_BROKEN: the peer broke
 * the rules for descriptors or shared memory. */
enum transport_result transport_receive(struct transport *t, uint64_t deadline, unsigned poll_us);

/* Reads the bytes in the ring, without waiting or a system call; TRANSPORT_TIMEOUT: nothing, or no ring. */
enum transport_result transport_drain(struct transport *t);

/* Finds the next whole message; NULL in *ret_data: none yet. Returns NULL, or a sentence saying why the bytes are
 * wrong. */
const char *transport_next(struct transport *t, const char **ret_data, size_t *ret_length);

/* Gives the message's own descriptors. Returns NULL or a sentence saying which rule was broken. */
const char *transport_claim(struct transport *t, unsigned n, int *ret_fds);

/* The message from transport_next() was dealt with. Returns NULL, or a sentence when descriptors came that no message
 * claimed. */
const char *transport_taken(struct transport *t, size_t length);

#endif
