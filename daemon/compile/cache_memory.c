#include "compile/cache_memory.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

struct cache_memory {
    struct list used; /* least recently used first */
    void *by_key;     /* a tree of the items */
    uint64_t bytes, limit;
    unsigned count;
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

static int by_key(const void *a, const void *b)
{
    const struct cache_item *x = a, *y = b;

    return memcmp(x->key, y->key, KEY_BYTES);
}

static struct cache_item *find(const struct cache_memory *m, const unsigned char *key)
{
    const struct cache_item sought = {.key = key};
    struct cache_item *const *found = tfind(&sought, &m->by_key, by_key);

    return found ? *found : NULL;
}

static void drop(struct cache_memory *m, struct cache_item *item)
{
    tdelete(item, &m->by_key, by_key);
    list_remove(&item->used);
    m->bytes -= item->bytes;
    m->count--;
    compiled_unref(item->compiled);
    free(item);
}

struct cache_memory *cache_memory_free(struct cache_memory *m)
{
    while (m && !list_empty(&m->used))
        drop(m, list_entry(list_first(&m->used), struct cache_item, used));
    free(m);
    return NULL;
}

struct cache_item *cache_memory_get(struct cache_memory *m, const unsigned char key[KEY_BYTES], uint64_t now_ns)
{
    struct cache_item *item = find(m, key);

    if (!item)
        return NULL;
    item->used_ns = now_ns;
    list_remove(&item->used);
    list_append(&m->used, &item->used);
    return item;
}

void cache_memory_put(struct cache_memory *m, struct compiled *compiled, uint64_t now_ns)
{
    struct cache_item *item, *old = find(m, compiled->key);
    size_t bytes = compiled_memory(compiled) + sizeof(*item);

    if (bytes > m->limit)
        return;
    item = malloc(sizeof(*item));
    if (!item)
        return; /* a cache may do without */
    if (old)
        drop(m, old);
    *item = (struct cache_item){
        .key = compiled->key, .compiled = compiled, .bytes = bytes, .used_ns = now_ns, .touched_ns = now_ns};
    if (!tsearch(item, &m->by_key, by_key)) {
        free(item);
        return;
    }
    compiled_ref(compiled);
    while (m->bytes > m->limit - bytes)
        drop(m, list_entry(list_first(&m->used), struct cache_item, used));
    list_append(&m->used, &item->used);
    m->bytes += bytes;
    m->count++;
}

bool cache_memory_remove(struct cache_memory *m, const unsigned char key[KEY_BYTES])
{
    struct cache_item *item = find(m, key);

    if (item)
        drop(m, item);
    return item;
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
