/* The service's files on disk, after the answer: written, or marked as used. No request waits for either. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "compile/service_internal.h"

struct store { /* a file that is being written, or told that it is used */
    struct work work;
    struct code_service *service;
    struct compiled *compiled; /* a reference */
    struct list link;          /* of the service's stores, where it is written */
    atomic_bool dropped;       /* the cache was cleared since it was begun */
};

static void store_run(struct work *work)
{
    struct store *t = list_entry(work, struct store, work);
    struct error e;

    pthread_rwlock_rdlock(&t->service->storing);
    if (!atomic_load(&t->dropped))
        cache_disk_write(t->service->disk, t->compiled, &e); /* counts and logs its failures */
    pthread_rwlock_unlock(&t->service->storing);
}

static void touch_run(struct work *work)
{
    struct store *t = list_entry(work, struct store, work);

    cache_disk_touch(t->service->disk, t->compiled->key);
}

static void store_done(struct work *work)
{
    struct store *t = list_entry(work, struct store, work);
    struct code_service *s = t->service;

    list_remove(&t->link);
    compiled_unref(t->compiled);
    free(t);
    service_let_go(s);
}

static struct store *begin(struct code_service *s, struct compiled *compiled, void (*run)(struct work *))
{
    struct store *t = s->disk ? calloc(1, sizeof(*t)) : NULL;

    if (!t)
        return NULL;
    t->service = s;
    t->compiled = compiled_ref(compiled);
    list_init(&t->link);
    service_hold(s);
    work_submit(s->loop, &t->work, run, store_done);
    return t;
}

void service_store(struct code_service *s, struct compiled *compiled)
{
    struct store *t = begin(s, compiled, store_run);

    if (t)
        list_append(&s->stores, &t->link);
}

void service_touch(struct code_service *s, struct compiled *compiled)
{
    begin(s, compiled, touch_run);
}

void service_drop_stores(struct code_service *s, const unsigned char *key)
{
    list_for_each_safe (node, after, &s->stores) {
        struct store *t = list_entry(node, struct store, link);

        if (!key || memcmp(t->compiled->key, key, KEY_BYTES) == 0)
            atomic_store(&t->dropped, true);
    }
}
