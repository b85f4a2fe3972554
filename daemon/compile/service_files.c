/* The service's files on disk, after the answer: written, or marked as used. No request waits for either. */
#include <stdlib.h>

#include "compile/service_internal.h"

struct store { /* a file that is being written, or told that it is used */
    struct work work;
    struct code_service *service;
    struct compiled *compiled; /* a reference */
};

static void store_run(struct work *work)
{
    struct store *t = list_entry(work, struct store, work);
    struct error e;

    cache_disk_write(t->service->disk, t->compiled, &e); /* counts and logs its failures */
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

    compiled_unref(t->compiled);
    free(t);
    service_let_go(s);
}

static void begin(struct code_service *s, struct compiled *compiled, void (*run)(struct work *))
{
    struct store *t = s->disk ? malloc(sizeof(*t)) : NULL;

    if (!t)
        return;
    t->service = s;
    t->compiled = compiled_ref(compiled);
    service_hold(s);
    work_submit(s->loop, &t->work, run, store_done);
}

void service_store(struct code_service *s, struct compiled *compiled)
{
    begin(s, compiled, store_run);
}

void service_touch(struct code_service *s, struct compiled *compiled)
{
    begin(s, compiled, touch_run);
}
