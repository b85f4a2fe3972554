/* Memory that is freed all at once, for decoded replies such as hello and stats. Not thread safe. */
#ifndef KOPS_CLIENT_ARENA_H
#define KOPS_CLIENT_ARENA_H

#include <stddef.h>

struct arena_chunk;

struct arena {
    struct arena_chunk *chunks;
    char *next;
    size_t left;
};

/* Zeroed memory for any type, as long as the arena lives; NULL when the process has none. A zeroed arena is empty. */
void *arena_new(struct arena *a, size_t size);

/* A copy that ends with a zero byte. */
char *arena_text(struct arena *a, const char *text, size_t length);

void arena_free(struct arena *a);

#endif
