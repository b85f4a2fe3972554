/* Memory that is freed all at once, for decoded replies such as hello and stats. Not thread safe. */
#ifndef KOPS_CLIENT_ARENA_H
#define KOPS_CLIENT_ARENA_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

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

/* Copies, in an arena, of memory that a caller's structs point to. Each function clears *whole when there is no memory.
 */
/* NULL for nothing. */
static inline void *copy_bytes(struct arena *a, const void *from, size_t size, bool *whole)
{
    void *to = size ? arena_new(a, size) : NULL;

    if (to)
        memcpy(to, from, size);
    *whole &= to || !size;
    return to;
}

/* NULL for NULL. */
static inline const char *copy_text(struct arena *a, const char *text, bool *whole)
{
    return text ? copy_bytes(a, text, strlen(text) + 1, whole) : NULL;
}

#endif
