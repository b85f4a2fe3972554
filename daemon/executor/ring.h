/* A ring of records in memory that two processes share: one writes, the other reads.
 *
 * Each end keeps its own position in its own memory and takes from the shared words only how far the other end is. So a
 * hostile other end can write nonsense, which the reader sees as `corrupt` or as a bad record, but cannot lead an end
 * outside of the ring. Records may change under the reader: it copies one before it checks it. */
#ifndef KOPS_EXECUTOR_RING_H
#define KOPS_EXECUTOR_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { RING_BYTES = 1 << 20, RING_RECORD_MAX = RING_BYTES / 2 - 64 };

/* In shared memory; zero at first. */
struct ring_words {
    _Alignas(64) atomic_ullong written;
    _Alignas(64) atomic_ullong read;
};

struct ring {
    struct ring_words *words;
    unsigned char *bytes; /* RING_BYTES of them */
    uint64_t position;
    uint64_t other; /* last known place of the other end */
    uint64_t step;  /* bytes of the record that ring_reserve() or ring_peek() gave, padding included */
    bool corrupt;   /* the other end wrote what no ring holds; nothing more is read */
};

void ring_init(struct ring *r, struct ring_words *words, unsigned char *bytes);

/* Writing: room for a record of `size` bytes (at most RING_RECORD_MAX), aligned to 8; NULL: the ring is full. The
 * record is seen by the other end after ring_publish(). */
void *ring_reserve(struct ring *r, uint32_t size);
void ring_publish(struct ring *r);
/* Writing: looks how far the reader is; whether it has read on since the last look. */
bool ring_read_on(struct ring *r);

/* Reading: the next record, aligned to 8; NULL: none. It stays until ring_next(). */
const void *ring_peek(struct ring *r, uint32_t *ret_size);
void ring_next(struct ring *r);

/* Reading: whether there may be a record; one load of a shared word. */
static inline bool ring_has_record(const struct ring *r)
{
    return atomic_load_explicit(&r->words->written, memory_order_acquire) != r->position;
}

#endif
