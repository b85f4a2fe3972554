#include "backend/memory_ids.h"

#include <stdatomic.h>

/* The arrays take no memory until ids are used. */
enum { IDS_MAX = 1 << 20 };
static _Atomic(struct backend_memory *) memories[IDS_MAX];
static uint32_t free_ids[IDS_MAX]; /* ids that were given back */
static uint32_t n_free, highest;   /* number of free_ids; the highest id so far */

uint32_t memory_id_new(struct error *e)
{
    if (n_free)
        return free_ids[--n_free];
    if (highest < IDS_MAX - 1)
        return ++highest;
    error_set(e, ERROR_OUT_OF_MEMORY, "the daemon has %d mappings, the most that it can", IDS_MAX - 1);
    return 0;
}

void memory_id_set(uint32_t id, struct backend_memory *memory)
{
    atomic_store_explicit(&memories[id], memory, memory_order_release);
}

void memory_id_free(uint32_t id)
{
    if (!id)
        return;
    memory_id_set(id, NULL);
    free_ids[n_free++] = id;
}

struct backend_memory *memory_by_id(uint32_t id)
{
    return atomic_load_explicit(&memories[id], memory_order_acquire);
}
