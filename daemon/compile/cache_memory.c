#include "compile/cache_memory.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1024 };

struct cache_memory {
    struct list used; /* least recently used first */
    uint64_t bytes, limit;
    unsigned count;
    struct cache_item *buckets[BUCKETS];
};

struct cache_memory *cache_memory_new(uint64_t limit)
{
    struct cache_memory *m = calloc(1, sizeof(*m));

    if (!m)
        return NULL;
    list_init(&m->used);
    m->limit = limit;
    return m;
}

/* Keys are hashes: any of their bits are as good as others. */
static struct cache_item **place(struct cache_memory *m, const unsigned char *key)
{
    struct cache_item **at = &m->buckets[(key[0] | (unsigned)key[1] << 8) % BUCKETS];

    while (*at && memcmp((*at)->compiled->key, key, KEY_BYTES) != 0)
        at = &(*at)->next;
    return at;
}

static void drop(struct cache_memory *m, struct cache_item **at)
{
    struct cache_item *item = *at;

    *at = item->next;
    list_remove(&item->used);
    m->bytes -= item->bytes;
    m->count--;
    compiled_unref(item->compiled);
    free(item);
}

struct cache_memory *cache_memory_free(struct cache_memory *m)
{
    if (m)
        for (unsigned i = 0; i < BUCKETS; i++)
            while (m->buckets[i])
                drop(m, &m->buckets[i]);
    free(m);
    return NULL;
}

struct cache_item *cache_memory_get(struct cache_memory *m, const unsigned char key[KEY_BYTES], uint64_t now_ns)
{
    struct cache_item *item = *place(m, key);

    if (!item)
        return NULL;
    item->used_ns = now_ns;
    list_remove(&item->used);
    list_append(&m->used, &item->used);
    return item;
}

void cache_memory_put(struct cache_memory *m, struct compiled *compiled, uint64_t now_ns)
{
    struct cache_item **at = place(m, compiled->key), *item;
    size_t bytes = compiled_memory(compiled) + sizeof(*item);

    if (bytes > m->limit)
        return;
    item = malloc(sizeof(*item));
    if (!item)
        return; /* a cache may do without */
    *item = (struct cache_item){.bytes = bytes, .used_ns = now_ns, .touched_ns = now_ns};
    item->compiled = compiled_ref(compiled);
    if (*at)
        drop(m, at);
    while (m->bytes > m->limit - bytes)
        drop(m, place(m, list_entry(list_first(&m->used), struct cache_item, used)->compiled->key));
    at = place(m, compiled->key);
    *at = item;
    list_append(&m->used, &item->used);
    m->bytes += bytes;
    m->count++;
}

bool cache_memory_remove(struct cache_memory *m, const unsigned char key[KEY_BYTES])
{
    struct cache_item **at = place(m, key);

    if (!*at)
        return false;
    drop(m, at);
    return true;
}

uint64_t cache_memory_bytes(const struct cache_memory *m)
{
    return m->bytes;
}

unsigned cache_memory_count(const struct cache_memory *m)
{
    return m->count;
}

struct cache_item *cache_memory_next(struct cache_memory *m, struct cache_item *item)
{
    struct list *next = item ? item->used.next : m->used.next;

    return next == &m->used ? NULL : list_entry(next, struct cache_item, used);
}
