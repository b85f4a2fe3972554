#include "server/code/code.h"

#include <stdlib.h>

#include "server/code/kernel.h"
#include "server/code/room.h"
#include "server/memory/connection_resources.h"

/* ---- the room ---- */

int modules_new(struct server *s, const struct compile_observer *observer, struct error *e)
{
    s->modules = calloc(1, sizeof(*s->modules));
    if (!s->modules)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory to start");
    s->modules->observer = observer;
    list_init(&s->modules->used);
    list_init(&s->modules->idle);
    s->modules->service = code_service_new(&s->loop, &s->config.code, e);
    return s->modules->service ? 0 : -1;
}

bool modules_are_loading(const struct server *s)
{
    return s->modules->n_loading != 0;
}

void modules_stop(struct server *s)
{
    code_service_close(s->modules->service, NULL, NULL);
    s->modules->service = NULL;
}

void modules_free(struct server *s)
{
    if (!s->modules)
        return;
    modules_unload(s);
    free(s->modules);
    s->modules = NULL;
}

void code_reload(struct server *s)
{
    code_service_limit_source(s->modules->service, s->config.code.source_bytes);
    code_service_use_remote(s->modules->service, &s->config.code.remote);
}

struct code_counters code_counters_of(const struct server *s)
{
    return code_service_counters(s->modules->service);
}

bool code_remote_of(const struct server *s, struct code_remote_counters *ret_counters, struct remote_report *ret_report)
{
    return code_service_remote(s->modules->service, ret_counters, ret_report);
}

/* ---- a connection's ---- */

static void drop_client_module(struct connection *c, struct client_module *m)
{
    idtable_remove(&c->code->modules, m->id);
    shared_charge_unref(m->shared);
    module_unref(m->module);
    free(m);
}

static void drop_kernel(struct connection *c, struct kernel *k)
{
    idtable_remove(&c->code->kernels, k->id);
    kernel_unref(k);
}

static int unknown(struct error *e, const char *key, uint64_t id)
{
    error_set(e, ERROR_UNKNOWN_KERNEL, "this connection has no %s %llu", key, (unsigned long long)id);
    return error_detail_text(e, "key", key);
}

int connection_release_module(struct connection *c, uint64_t id, struct error *e)
{
    struct client_module *m = idtable_get(&c->code->modules, id);

    if (!m)
        return unknown(e, "module", id);
    drop_client_module(c, m);
    return 0;
}

int connection_release_kernel(struct connection *c, uint64_t id, struct error *e)
{
    struct kernel *k = idtable_get(&c->code->kernels, id);

    if (!k)
        return unknown(e, "kernel", id);
    drop_kernel(c, k);
    return 0;
}

unsigned code_kernels(const struct connection *c)
{
    return c->code->kernels.used;
}

struct kernel *connection_kernel(const struct connection *c, uint64_t id)
{
    return idtable_get(&c->code->kernels, id);
}

void code_limit_connection(struct connection *c)
{
    c->code->modules.max = c->code->kernels.max = (uint32_t)c->server->config.kernels;
}

static int begin(struct connection *c, struct error *e)
{
    c->code = calloc(1, sizeof(*c->code));
    if (!c->code)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for another connection; try again later");
    idtable_init(&c->code->modules, (uint32_t)c->server->config.kernels);
    idtable_init(&c->code->kernels, (uint32_t)c->server->config.kernels);
    list_init(&c->code->compiles);
    return 0;
}

static void end(struct connection *c)
{
    struct error ended;

    error_set(&ended, ERROR_CANCELLED, "the connection ended");
    compiles_cancel_all(c, &ended);
    for (uint32_t i = 0; i < c->code->kernels.capacity; i++)
        if (idtable_at(&c->code->kernels, i))
            drop_kernel(c, idtable_at(&c->code->kernels, i));
    for (uint32_t i = 0; i < c->code->modules.capacity; i++)
        if (idtable_at(&c->code->modules, i))
            drop_client_module(c, idtable_at(&c->code->modules, i));
}

static void free_part(struct connection *c)
{
    if (!c->code)
        return;
    idtable_free(&c->code->modules);
    idtable_free(&c->code->kernels);
    free(c->code);
    c->code = NULL;
}

const struct connection_part connection_code_part = {.begin = begin, .end = end, .free = free_part};
