#include "server/code/code.h"

#include <stdlib.h>

#include "compile/service.h"
#include "server/code/kernel.h"
#include "server/code/room.h"
#include "server/memory/connection_resources.h"
#include "server/peer/access.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"

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

/* ---- permission to bring kernels (kernels.user_kernels), and the `kernels` entries of hello and stats ---- */

const char *const user_kernels_names[USER_KERNELS_COUNT] = {
    [USER_KERNELS_OFF] = "off",
    [USER_KERNELS_OWNER] = "owner",
    [USER_KERNELS_GROUP] = "group",
    [USER_KERNELS_ALL] = "all",
};

const char *const isolation_names[ISOLATE_COUNT] = {
    [ISOLATE_NONE] = "none",
    [ISOLATE_USER] = "user",
    [ISOLATE_CONNECTION] = "connection",
};

static bool is_among(const struct connection *c, enum user_kernels policy, gid_t group)
{
    const bool owner = access_is_owner(c);

    switch (policy) {
    case USER_KERNELS_OFF:
        return false;
    case USER_KERNELS_OWNER:
        return owner;
    case USER_KERNELS_GROUP:
        return owner || access_in_group(c, group);
    case USER_KERNELS_ALL:
        return true;
    case USER_KERNELS_COUNT:
        break;
    }
    return false;
}

/* The policy for this connection: an identity's own, where kernels of users are allowed at all. */
static enum user_kernels policy_for(const struct connection *c, enum user_kernels all, bool identity_may)
{
    if (!c->identity || all == USER_KERNELS_OFF)
        return all;
    return identity_may ? USER_KERNELS_ALL : USER_KERNELS_OFF;
}

static enum user_kernels kernels_policy(const struct connection *c)
{
    return policy_for(c, c->server->config.user_kernels, c->identity && c->identity->rights.kernels);
}

static enum user_kernels codes_policy(const struct connection *c)
{
    return policy_for(c, c->server->config.hand_out, c->identity && c->identity->rights.codes);
}

static bool is_allowed(const struct connection *c)
{
    return is_among(c, kernels_policy(c), c->server->config.user_kernels_group);
}

bool user_code_hands_out(const struct connection *c)
{
    return is_among(c, codes_policy(c), c->server->config.hand_out_group);
}

int user_code_check_hand_out(const struct connection *c, struct error *e)
{
    const char *policy = user_kernels_names[codes_policy(c)];
    char name[WHO_MAX];

    if (user_code_hands_out(c))
        return 0;
    account_refused(c->account, c->pid, REFUSED_KERNELS, 0, 0);
    error_set(e, ERROR_PERMISSION_DENIED,
              "code is not handed out to %s here (%s is %s): launch it in the daemon, or ask the daemon's "
              "administrator",
              account_name(c->account, name), c->identity ? "its socket's hand_out" : "kernels.hand_out", policy);
    return error_detail_text(e, "policy", policy);
}

int user_code_check(const struct connection *c, struct error *e)
{
    const char *policy = user_kernels_names[kernels_policy(c)];
    char name[WHO_MAX];

    if (is_allowed(c))
        return 0;
    account_refused(c->account, c->pid, REFUSED_KERNELS, 0, 0);
    error_set(e, ERROR_PERMISSION_DENIED,
              "kernels of users are not for %s here (%s is %s): ask the daemon's administrator, or start a daemon of "
              "your own",
              account_name(c->account, name), c->identity ? "its socket's user_kernels" : "kernels.user_kernels",
              policy);
    return error_detail_text(e, "policy", policy);
}

struct backend_device *user_code_device(const struct server *s)
{
    if (s->devices.fallback && s->devices.fallback->backend->code_load)
        return s->devices.fallback;
    for (unsigned i = 0; i < s->devices.count; i++)
        if (s->devices.all[i]->backend->code_load)
            return s->devices.all[i];
    return NULL;
}

const struct backend *user_code_image_backend(const struct server *s)
{
    for (unsigned i = 0; i < s->devices.count; i++)
        if (s->devices.all[i]->backend->image)
            return s->devices.all[i]->backend;
    return NULL;
}

static void write_arch(struct rpc_output *out, const void *of, uint32_t i)
{
    const struct server *s = of;
    char arch[COMPILED_ARCH_SIZE];

    module_default_arch(s->devices.all[i], arch);
    rpc_write_text(out, arch);
}

static void write_tree(struct rpc_output *out, const void *of, uint32_t i)
{
    rpc_write_any_text(out, compiler_tree(of, i));
}

struct kernels_map user_code_hello(const struct connection *c, struct user_code_texts *texts)
{
    const struct server *s = c->server;
    const struct compiler *compiler = code_service_compiler(s->modules->service);
    const unsigned trees = compiler_trees(compiler);
    struct code_remote_counters counters;
    const bool shared = code_service_remote(s->modules->service, &counters, &texts->remote);

    return (struct kernels_map){
        .compiler = compiler_name(compiler),
        .compiler_why = compiler_usable(compiler, &texts->why) ? NULL : texts->why.message,
        .arch = {s->devices.count, write_arch, s},
        .policy = user_kernels_names[kernels_policy(c)],
        .allowed = is_allowed(c),
        .include_extra = {trees, trees ? write_tree : NULL, compiler},
        .remote = shared ? remote_state_names[texts->remote.state] : NULL,
        .remote_why = shared && *texts->remote.why ? texts->remote.why : NULL,
    };
}

bool user_code_compiles(const struct connection *c)
{
    return is_allowed(c) && compiler_usable(code_service_compiler(c->server->modules->service), NULL);
}

struct kernel_counters_map user_code_stats(const struct server *s, uint64_t launches)
{
    const struct code_counters n = code_service_counters(s->modules->service);
    struct code_remote_counters r;
    struct remote_report report;
    const bool shared = code_service_remote(s->modules->service, &r, &report);

    return (struct kernel_counters_map){
        .compiles = n.compiles,
        .cache_memory_hits = n.memory_hits,
        .cache_disk_hits = n.disk_hits,
        .failures = n.failures,
        .single_flight_joins = n.joins,
        .launches = launches,
        .cache_remote_hits = {shared, r.hits},
        .remote_misses = {shared, r.misses},
        .remote_late = {shared, r.late},
        .remote_failures = {shared, r.failures},
        .remote_rejected = {shared, r.rejected},
        .remote_skipped = {shared, r.skipped},
        .remote_uploads = {shared, r.uploads},
        .remote_upload_failures = {shared, r.upload_failures},
        .remote_upload_drops = {shared, r.upload_drops},
    };
}
