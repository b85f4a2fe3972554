/* The shared memory of one connection: its layout, and both ends of its two rings.
 *
 * The daemon makes it (a memfd sealed against every change of size), the client maps it. A page of control words comes
 * first, then the bytes of the request ring (client to daemon), then those of the reply ring (daemon to client); both
 * sizes are powers of two. A ring is a stream of bytes, like the socket: MessagePack messages back to back. One process
 * writes it and one reads it.
 *
 * Neither side believes the other: an end keeps its own index in private memory, reads the other's once and checks it
 * before use, and never touches a byte outside the ring whatever the memory says. What was read is looked at only in
 * the private copy.
 *
 * Sleeping. Whoever finds nothing to read sets consumer_sleeps, looks once more, and only then waits for its bell;
 * whoever has written looks at consumer_sleeps and rings the bell if it was set. Both the store before and the load
 * after are sequentially consistent, so that of the two at least one sees the other. For want of room the same, with
 * producer_sleeps. A bell that rings twice, or for nothing, is harmless.
 * The daemon's bell is an eventfd to add 1 to; the client's is a descriptor to poll and read away.
 *
 * Nothing here allocates or calls the system. Thread: the end's owner. */
#ifndef KOPS_PROTO_RING_H
#define KOPS_PROTO_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto/wait.h"

enum {
    RING_PAGE_BYTES = 4096, /* the control words' page; the request ring starts behind it */
    RING_LINE_BYTES = 64,
    RING_MIN_BYTES = 4096, /* of one ring */
    RING_REQUEST_BYTES = 256 * 1024,
    RING_REPLY_BYTES = 256 * 1024
};

/* Of one ring, in shared memory; each word has a cache line of its own. */
struct ring_control {
    _Alignas(RING_LINE_BYTES) _Atomic uint64_t head;            /* bytes ever written; the producer's */
    _Alignas(RING_LINE_BYTES) _Atomic uint64_t tail;            /* bytes ever read; the consumer's */
    _Alignas(RING_LINE_BYTES) _Atomic uint32_t consumer_sleeps; /* set by the consumer, taken back by either */
    _Alignas(RING_LINE_BYTES) _Atomic uint32_t producer_sleeps; /* waits for room; set by the producer */
};

/* When the reply that the client waits for is likely (wait.h); the daemon's. Two words that may be of two windows for a
 * moment: a client that waits by them is told by its bell all the same. */
struct ring_window {
    _Alignas(RING_LINE_BYTES) _Atomic uint64_t from_ns;
    _Atomic uint64_t to_ns;
};

/* What the memory starts with. */
struct ring_page {
    struct ring_control request, reply;
    struct ring_window window;
};

_Static_assert(sizeof(struct ring_control) == 4 * RING_LINE_BYTES, "one cache line a word");
_Static_assert(sizeof(struct ring_page) <= RING_PAGE_BYTES, "the control words fit into their page");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "indices are shared between processes, where a lock cannot help");

/* The writing end. */
struct ring_producer {
    struct ring_control *control;
    unsigned char *bytes;
    uint64_t size;
    uint64_t head; /* what was written; ring_publish() shows it */
    uint64_t tail; /* the consumer's when last looked at */
};

/* The reading end. */
struct ring_consumer {
    struct ring_control *control;
    const unsigned char *bytes;
    uint64_t size;
    uint64_t tail; /* what was read */
    uint64_t head; /* the producer's when last looked at */
};

/* ---- layout ---- */

static inline bool ring_size_valid(uint64_t size)
{
    return size >= RING_MIN_BYTES && size <= (UINT64_C(1) << 30) && (size & (size - 1)) == 0;
}

/* Bytes of the whole memory. */
static inline uint64_t ring_memory_bytes(uint64_t request_bytes, uint64_t reply_bytes)
{
    return RING_PAGE_BYTES + request_bytes + reply_bytes;
}

/* The longest message that may go through a ring; a longer one goes over the socket. */
static inline uint64_t ring_message_bytes(uint64_t size)
{
    return size / 2;
}

static inline void ring_producer_init(struct ring_producer *p, struct ring_control *control, void *bytes, uint64_t size)
{
    *p = (struct ring_producer){control, bytes, size, 0, 0};
}

static inline void ring_consumer_init(struct ring_consumer *c, struct ring_control *control, const void *bytes,
                                      uint64_t size)
{
    *c = (struct ring_consumer){control, bytes, size, 0, 0};
}

/* The daemon's ends of a fresh memory (all zeros). */
static inline void ring_daemon_ends(void *memory, uint64_t request_bytes, uint64_t reply_bytes,
                                    struct ring_consumer *ret_requests, struct ring_producer *ret_replies)
{
    struct ring_page *page = memory;
    unsigned char *at = (unsigned char *)memory + RING_PAGE_BYTES;

    ring_consumer_init(ret_requests, &page->request, at, request_bytes);
    ring_producer_init(ret_replies, &page->reply, at + request_bytes, reply_bytes);
}

/* The client's ends of the same. */
static inline void ring_client_ends(void *memory, uint64_t request_bytes, uint64_t reply_bytes,
                                    struct ring_producer *ret_requests, struct ring_consumer *ret_replies)
{
    struct ring_page *page = memory;
    unsigned char *at = (unsigned char *)memory + RING_PAGE_BYTES;

    ring_producer_init(ret_requests, &page->request, at, request_bytes);
    ring_consumer_init(ret_replies, &page->reply, at + request_bytes, reply_bytes);
}

/* ---- when a reply is likely ---- */

static inline void ring_window_set(void *memory, struct wait_window w)
{
    struct ring_window *to = &((struct ring_page *)memory)->window;

    atomic_store_explicit(&to->from_ns, w.from_ns, memory_order_relaxed);
    atomic_store_explicit(&to->to_ns, w.to_ns, memory_order_relaxed);
}

static inline struct wait_window ring_window_get(void *memory)
{
    struct ring_window *from = &((struct ring_page *)memory)->window;

    return (struct wait_window){atomic_load_explicit(&from->from_ns, memory_order_relaxed),
                                atomic_load_explicit(&from->to_ns, memory_order_relaxed)};
}

/* ---- writing ---- */

/* Looks at the consumer's index: bytes there is room for now. -1: the index went backwards or past what was written;
 * the other side cannot be trusted any more. */
static inline int64_t ring_room(struct ring_producer *p)
{
    uint64_t tail = atomic_load_explicit(&p->control->tail, memory_order_seq_cst);

    if (tail - p->tail > p->head - p->tail)
        return -1;
    p->tail = tail;
    return (int64_t)(p->size - (p->head - tail));
}

/* Room as it was when last looked at; never more than there is. Spares the other side's cache line. */
static inline uint64_t ring_room_known(const struct ring_producer *p)
{
    return p->size - (p->head - p->tail);
}

/* Copies `n` bytes, at most the room last seen. The consumer does not see them before ring_publish(). */
static inline void ring_write(struct ring_producer *p, const void *data, size_t n)
{
    size_t at = (size_t)(p->head & (p->size - 1)), first = (size_t)p->size - at;

    if (first > n)
        first = n;
    memcpy(p->bytes + at, data, first);
    memcpy(p->bytes, (const unsigned char *)data + first, n - first);
    p->head += n;
}

/* Shows the consumer what was written. Returns true when it sleeps: its bell must be rung. */
static inline bool ring_publish(struct ring_producer *p)
{
    atomic_store_explicit(&p->control->head, p->head, memory_order_seq_cst);
    return atomic_load_explicit(&p->control->consumer_sleeps, memory_order_seq_cst) &&
           atomic_exchange_explicit(&p->control->consumer_sleeps, 0, memory_order_seq_cst);
}

/* Before sleeping for want of room. ring_room() must be called once more after it, before the sleep. */
static inline void ring_producer_sleeps(struct ring_producer *p)
{
    atomic_store_explicit(&p->control->producer_sleeps, 1, memory_order_seq_cst);
}

static inline void ring_producer_wakes(struct ring_producer *p)
{
    atomic_store_explicit(&p->control->producer_sleeps, 0, memory_order_relaxed);
}

/* ---- reading ---- */

/* Looks at the producer's index: bytes to read. -1: the index went backwards or past the ring's size. */
static inline int64_t ring_available(struct ring_consumer *c)
{
    uint64_t head = atomic_load_explicit(&c->control->head, memory_order_seq_cst);

    if (head - c->tail > c->size || head - c->tail < c->head - c->tail)
        return -1;
    c->head = head;
    return (int64_t)(head - c->tail);
}

/* Copies at most `max` of the bytes last seen to private memory and gives their room back. Returns how many. */
static inline size_t ring_read(struct ring_consumer *c, void *into, size_t max)
{
    size_t n = (size_t)(c->head - c->tail), at = (size_t)(c->tail & (c->size - 1)), first = (size_t)c->size - at;

    if (n > max)
        n = max;
    if (first > n)
        first = n;
    memcpy(into, c->bytes + at, first);
    memcpy((unsigned char *)into + first, c->bytes, n - first);
    c->tail += n;
    atomic_store_explicit(&c->control->tail, c->tail, memory_order_seq_cst);
    return n;
}

/* After ring_read(): true when the producer waits for room: its bell must be rung. */
static inline bool ring_producer_waits(struct ring_consumer *c)
{
    return atomic_load_explicit(&c->control->producer_sleeps, memory_order_seq_cst) &&
           atomic_exchange_explicit(&c->control->producer_sleeps, 0, memory_order_seq_cst);
}

/* Before sleeping for want of bytes. ring_available() must be called once more after it, before the sleep. */
static inline void ring_consumer_sleeps(struct ring_consumer *c)
{
    atomic_store_explicit(&c->control->consumer_sleeps, 1, memory_order_seq_cst);
}

static inline void ring_consumer_wakes(struct ring_consumer *c)
{
    atomic_store_explicit(&c->control->consumer_sleeps, 0, memory_order_relaxed);
}

/* ---- spinning ---- */

/* Between two looks: lets the other hyperthread run, and the core sip. */
static inline void ring_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

#endif
