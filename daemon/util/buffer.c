#include "util/buffer.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 4096 };

void buffer_init(struct buffer *b, size_t max)
{
    *b = (struct buffer){.max = max};
}

void buffer_free(struct buffer *b)
{
    free(b->data);
    buffer_init(b, b->max);
}

unsigned char *buffer_reserve_slowly(struct buffer *b, size_t n)
{
    size_t length = buffer_length(b), capacity = b->capacity ? b->capacity : FIRST_CAPACITY;
    unsigned char *data;

    if (b->failed || n > b->max || length > b->max - n) {
        b->failed = true;
        return NULL;
    }
    if (b->data && n <= b->capacity - b->end)
        return b->data + b->end;
    if (b->start) {
        memmove(b->data, b->data + b->start, length);
        b->start = 0;
        b->end = length;
    }
    while (capacity < length + n)
        capacity *= 2;
    if (capacity > b->capacity) {
        data = realloc(b->data, capacity);
        if (!data) {
            b->failed = true;
            return NULL;
        }
        b->data = data;
        b->capacity = capacity;
    }
    return b->data + b->end;
}

void buffer_append(struct buffer *b, const void *data, size_t n)
{
    unsigned char *at = buffer_reserve(b, n);

    if (at) {
        memcpy(at, data, n);
        b->end += n;
    }
}

void buffer_consume(struct buffer *b, size_t n)
{
    b->start += n;
    if (b->start < b->end)
        return;
    b->start = b->end = 0;
    if (b->capacity > BUFFER_KEPT) {
        free(b->data);
        b->data = NULL;
        b->capacity = 0;
    }
}
