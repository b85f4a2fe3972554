/* A growable run of bytes with a declared maximum. Append at the end, consume from the front. Not thread safe. */
#ifndef KOPS_UTIL_BUFFER_H
#define KOPS_UTIL_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

/* Most memory that an empty buffer keeps, so that one big message does not cost its size for ever. */
enum { BUFFER_KEPT = 16 * 1024 };

struct buffer {
    unsigned char *data; /* owned */
    size_t start, end;   /* the content is data[start, end) */
    size_t capacity, max;
    bool failed; /* an append did not fit; sticky until buffer_free() */
};

void buffer_init(struct buffer *b, size_t max);
void buffer_free(struct buffer *b);

/* Makes room for `n` more bytes behind `end`; returns where, or NULL (and sets failed). */
unsigned char *buffer_reserve_slowly(struct buffer *b, size_t n);
static inline unsigned char *buffer_reserve(struct buffer *b, size_t n)
{
    if (b->data && !b->failed && n <= b->capacity - b->end && n <= b->max && b->end - b->start <= b->max - n)
        return b->data + b->end;
    return buffer_reserve_slowly(b, n);
}

void buffer_append(struct buffer *b, const void *data, size_t n);
void buffer_consume(struct buffer *b, size_t n);

static inline size_t buffer_length(const struct buffer *b)
{
    return b->end - b->start;
}

/* Returns the content's size where it is large enough to count in the process's memory; else 0. */
static inline size_t buffer_held(const struct buffer *b)
{
    return b->capacity > BUFFER_KEPT ? b->capacity : b->end - b->start;
}

#endif
