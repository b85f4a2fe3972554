/* A growing run of bytes that keeps its memory when it is emptied. Not thread safe. */
#ifndef KOPS_CLIENT_BYTES_H
#define KOPS_CLIENT_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct bytes {
    char *data;
    size_t length, capacity;
    bool failed; /* an append found no memory; everything since the caller cleared it is incomplete */
};

/* The usual append finds room. */
__attribute__((cold)) static inline bool bytes_grow(struct bytes *b, size_t length)
{
    size_t capacity = b->capacity ? b->capacity : 1024;
    char *grown;

    while (capacity - b->length < length)
        capacity *= 2;
    grown = realloc(b->data, capacity);
    if (!grown) {
        b->failed = true;
        return false;
    }
    b->data = grown;
    b->capacity = capacity;
    return true;
}

static inline bool bytes_append(struct bytes *b, const void *data, size_t length)
{
    if (!length)
        return true;
    if (length > b->capacity - b->length && !bytes_grow(b, length))
        return false;
    memcpy(b->data + b->length, data, length);
    b->length += length;
    return true;
}

static inline void bytes_free(struct bytes *b)
{
    free(b->data);
    *b = (struct bytes){0};
}

#endif
