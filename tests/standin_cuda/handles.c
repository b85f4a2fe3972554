/* Handles are numbers, not addresses: a table entry, its generation and its kind. So a destroyed handle is known for
 * what it is, however late it is used, and never reaches freed memory. Under the mutex. */
#include <stdlib.h>

#include "standin.h"

struct entry {
    void *object; /* NULL: free */
    uint32_t generation;
    uint32_t next_free;
    enum handle_kind kind;
};

static struct entry *entries;
static uint32_t n_entries, capacity, first_free = UINT32_MAX;

static const char *const kind_names[] = {"",           "context",           "stream", "event",      "module",
                                         "function",   "allocation handle", "graph",  "graph node", "graph exec",
                                         "memory pool"};

void *handle_new(enum handle_kind kind, void *object)
{
    uint32_t index = first_free;

    if (index != UINT32_MAX) {
        first_free = entries[index].next_free;
    } else {
        if (n_entries == capacity) {
            uint32_t more = capacity ? capacity * 2 : 1024;
            struct entry *grown = more < 1U << 24 ? realloc(entries, more * sizeof(*entries)) : NULL;

            if (!grown)
                return NULL;
            entries = grown;
            capacity = more;
        }
        index = n_entries++;
        entries[index].generation = 0;
    }
    entries[index].generation = (entries[index].generation + 1) & 0xffffff;
    entries[index].object = object;
    entries[index].kind = kind;
    return (void *)(uintptr_t)((uint64_t)(0x1c0 + kind) << 48 | (uint64_t)entries[index].generation << 24 | index);
}

void *handle_get(enum handle_kind kind, const void *handle)
{
    uint64_t bits = (uint64_t)(uintptr_t)handle;
    uint32_t index = bits & 0xffffff, generation = bits >> 24 & 0xffffff;

    if (bits >> 48 != (uint64_t)(0x1c0 + kind) || index >= n_entries) {
        misuse(0, "%p is no %s", handle, kind_names[kind]);
        return NULL;
    }
    if (!entries[index].object || entries[index].kind != kind || entries[index].generation != generation) {
        misuse(0, "%s %p was destroyed", kind_names[kind], handle);
        return NULL;
    }
    return entries[index].object;
}

void handle_free(const void *handle)
{
    uint32_t index = (uint64_t)(uintptr_t)handle & 0xffffff;

    entries[index].object = NULL;
    entries[index].next_free = first_free;
    first_free = index;
}
