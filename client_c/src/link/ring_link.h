/* The client's side of a connection's shared memory: both rings and both bells (proto/ring.h, PROTOCOL.md).
 *
 * The link owns the mapping and the two eventfds. The sending half (requests) and the receiving half (replies) belong
 * to one thread each at a time, as the transport's do. No value that the daemon writes there is trusted. */
#ifndef KOPS_CLIENT_RING_LINK_H
#define KOPS_CLIENT_RING_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "proto/ring.h"

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

void ring_link_init(struct ring_link *l);

/* Maps the memory and takes the descriptors, also on failure. Returns NULL, or a sentence that says why
 * they are wrong. */
const char *ring_link_open(struct ring_link *l, const struct ring_offer *offer);

/* Unmaps and closes; safe without memory. */
void ring_link_close(struct ring_link *l);

/* Writes as much as there is room for, at most n bytes. Returns how many, -EAGAIN for none, -EPROTO when the daemon
 * broke the ring. */
ssize_t ring_link_send(struct ring_link *l, const void *data, size_t n);

/* Tells whether the daemon has not yet read up to the place `end` of the request ring's stream. */
bool ring_link_unread(const struct ring_link *l, uint64_t end);

/* Returns the window in which the daemon expects its next reply. */
struct wait_window ring_link_window(const struct ring_link *l);

/* Copies received bytes, at most `max`. Returns how many, 0 for none, -EPROTO. */
ssize_t ring_link_receive(struct ring_link *l, void *into, size_t max);

/* Prepares for poll(2) on `wake`. False: there is something to receive already, or something is wrong. */
bool ring_link_sleep(struct ring_link *l);

/* Ends the sleep after poll(2); `rung` when `wake` was readable. */
void ring_link_awake(struct ring_link *l, bool rung);

/* Asks to be woken when there is room again. False: there is room already. */
bool ring_link_want_room(struct ring_link *l);

#endif
