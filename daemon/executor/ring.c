#include "executor/ring.h"

#include <string.h>

/* Before each record. A record never wraps: where it would, padding fills the ring's end. */
struct head {
    uint32_t size;   /* bytes of the record, without the head */
    uint32_t filler; /* 1: this is padding */
};

void ring_init(struct ring *r, struct ring_words *words, unsigned char *bytes)
{
    *r = (struct ring){.words = words, .bytes = bytes};
}

static uint64_t whole(uint32_t size)
{
    return sizeof(struct head) + (((uint64_t)size + 7) & ~UINT64_C(7));
}

static unsigned char *at(const struct ring *r, uint64_t position)
{
    return r->bytes + (position & (RING_BYTES - 1));
}

static uint64_t to_end(uint64_t position)
{
    return RING_BYTES - (position & (RING_BYTES - 1));
}

static void write_head(const struct ring *r, uint64_t position, uint32_t size, uint32_t filler)
{
    const struct head head = {.size = size, .filler = filler};

    memcpy(at(r, position), &head, sizeof(head));
}

bool ring_read_on(struct ring *r)
{
    const uint64_t read = atomic_load_explicit(&r->words->read, memory_order_acquire);

    if (read == r->other || read - r->other > r->position - r->other)
        return false; /* the latter is nonsense: the reader cannot be ahead of the writer */
    r->other = read;
    return true;
}

void *ring_reserve(struct ring *r, uint32_t size)
{
    const uint64_t bytes = whole(size), left = to_end(r->position), padding = left < bytes ? left : 0;

    if (RING_BYTES - (r->position - r->other) < padding + bytes)
        ring_read_on(r);
    if (size > RING_RECORD_MAX || RING_BYTES - (r->position - r->other) < padding + bytes)
        return NULL;
    if (padding)
        write_head(r, r->position, (uint32_t)(padding - sizeof(struct head)), 1);
    write_head(r, r->position + padding, size, 0);
    r->step = padding + bytes;
    return at(r, r->position + padding) + sizeof(struct head);
}

void ring_publish(struct ring *r)
{
    r->position += r->step;
    atomic_store_explicit(&r->words->written, r->position, memory_order_release);
}

static bool read_head(struct ring *r, uint64_t position, struct head *ret)
{
    const uint64_t there = r->other - position;

    if (there < sizeof(*ret)) {
        r->corrupt = r->corrupt || there != 0;
        return false;
    }
    memcpy(ret, at(r, position), sizeof(*ret));
    atomic_signal_fence(memory_order_seq_cst); /* keeps the compiler from reading the shared head again */
    r->corrupt = ret->size > RING_BYTES || whole(ret->size) > there || whole(ret->size) > to_end(position);
    return !r->corrupt;
}

const void *ring_peek(struct ring *r, uint32_t *ret_size)
{
    uint64_t position = r->position;
    struct head head;

    if (r->corrupt)
        return NULL;
    if (r->other == position) {
        r->other = atomic_load_explicit(&r->words->written, memory_order_acquire);
        r->corrupt = r->other - position > RING_BYTES || r->other % 8;
        if (r->corrupt || r->other == position)
            return NULL;
    }
    if (!read_head(r, position, &head))
        return NULL;
    if (head.filler) {
        position += whole(head.size);
        if (!read_head(r, position, &head))
            return NULL;
        r->corrupt = head.filler != 0; /* a writer pads once */
        if (r->corrupt)
            return NULL;
    }
    r->step = position - r->position + whole(head.size);
    *ret_size = head.size;
    return at(r, position) + sizeof(head);
}

void ring_next(struct ring *r)
{
    r->position += r->step;
    atomic_store_explicit(&r->words->read, r->position, memory_order_release);
}
