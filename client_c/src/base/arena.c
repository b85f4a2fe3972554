#include "arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK_SIZE = 8192 };

struct arena_chunk {
    struct arena_chunk *next;
    alignas(max_align_t) char data[];
};

void *arena_new(struct arena *a, size_t size)
{
    const size_t align = alignof(max_align_t);
    void *p;

    if (size > SIZE_MAX / 2)
        return NULL;
    size = (size + align - 1) / align * align;
    if (size > a->left) {
        size_t room = size > CHUNK_SIZE ? size : CHUNK_SIZE;
        struct arena_chunk *chunk = calloc(1, sizeof(*chunk) + room);

        if (!chunk)
            return NULL;
        chunk->next = a->chunks;
        a->chunks = chunk;
        a->next = chunk->data;
        a->left = room;
    }
    p = a->next;
    a->next += size;
    a->left -= size;
    return p;
}

char *arena_text(struct arena *a, const char *text, size_t length)
{
    char *copy = arena_new(a, length + 1);

    if (copy)
        memcpy(copy, text, length);
    return copy;
}

void arena_free(struct arena *a)
{
    while (a->chunks) {
        struct arena_chunk *next = a->chunks->next;

        free(a->chunks);
        a->chunks = next;
    }
    a->next = NULL;
    a->left = 0;
}
