/* Binaries in memory, by key; the least recently used are dropped first.
 *
 * Owns a reference to each module. Thread: the loop's. */
#ifndef KOPS_COMPILE_CACHE_MEMORY_H
#define KOPS_COMPILE_CACHE_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "compile/compiled.h"
#include "util/list.h"

struct cache_memory;

struct cache_item {
    struct list used;          /* in the order of use */
    const unsigned char *key;  /* the module's */
    struct compiled *compiled; /* owned */
    size_t bytes;
    uint64_t used_ns, touched_ns; /* last use; when its file was last told so (the owner keeps that) */
};

struct cache_memory *cache_memory_new(uint64_t limit);
/* NULL is allowed. Returns NULL. */
struct cache_memory *cache_memory_free(struct cache_memory *m);

/* Returns the item, which becomes the one used last, or NULL. Valid until the next put or remove. */
struct cache_item *cache_memory_get(struct cache_memory *m, const unsigned char key[KEY_BYTES], uint64_t now_ns);

/* Takes a reference and drops others until all fit; replaces a binary of the same key. A binary above the limit is not
 * kept. */
void cache_memory_put(struct cache_memory *m, struct compiled *compiled, uint64_t now_ns);

bool cache_memory_remove(struct cache_memory *m, const unsigned char key[KEY_BYTES]);

uint64_t cache_memory_bytes(const struct cache_memory *m);
unsigned cache_memory_count(const struct cache_memory *m);

/* Returns the least recently used item after `item` (NULL: the first of all); NULL after the last. */
struct cache_item *cache_memory_next(struct cache_memory *m, struct cache_item *item);

#endif
