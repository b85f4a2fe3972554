/* Copies, in an arena, of memory that a caller's structs point to. Each function clears *whole when there is no memory.
 */
#ifndef KOPS_CLIENT_COPY_H
#define KOPS_CLIENT_COPY_H

#include <stdbool.h>
#include <string.h>

#include "arena.h"

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
