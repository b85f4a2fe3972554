#include "util/loop_memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

enum { UNUSED_ENTRIES = 64 }; /* libuv rounds up, and keeps two entries for itself */

/* The table is the only thing that libuv makes by realloc(). */
static void *table;
static size_t table_bytes;
static unsigned table_descriptors;
static atomic_bool taken;

static void *table_realloc(void *old, size_t size)
{
    void *moved;

    if (!old && table && size <= table_bytes && !atomic_exchange(&taken, true))
        return table;
    if (!old || old != table)
        return realloc(old, size);
    if (size <= table_bytes)
        return table;
    moved = malloc(size);
    if (moved) {
        memcpy(moved, table, table_bytes);
        atomic_store(&taken, false);
    }
    return moved;
}

static void table_free(void *at)
{
    if (at && at == table)
        atomic_store(&taken, false);
    else
        free(at);
}

int loop_memory_reserve(unsigned descriptors, struct error *e)
{
    size_t entries = UNUSED_ENTRIES;

    if (table)
        return 0;
    while (entries < descriptors + UNUSED_ENTRIES)
        entries *= 2;
    table = malloc(entries * sizeof(void *));
    if (!table)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to watch %u descriptors", descriptors);
    table_bytes = entries * sizeof(void *);
    table_descriptors = (unsigned)entries - UNUSED_ENTRIES;
    uv_replace_allocator(malloc, table_realloc, calloc, table_free);
    return 0;
}

unsigned loop_memory_descriptors(void)
{
    return table ? table_descriptors : UINT32_MAX;
}
