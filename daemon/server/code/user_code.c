/* Permission to bring kernels (kernels.user_kernels), and the `kernels` entries of hello and stats. */
#include "compile/service.h"
#include "server/code/code.h"
#include "server/code/module.h"
#include "server/code/room.h"
#include "server/memory/connection_resources.h"
#include "server/peer/access.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"

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

void user_code_write_hello(struct rpc_output *out, const struct connection *c)
{
    const struct server *s = c->server;
    const struct compiler *compiler = code_service_compiler(s->modules->service);
    const unsigned trees = compiler_trees(compiler);
    char arch[COMPILED_ARCH_SIZE];
    struct error why;
    const bool usable = compiler_usable(compiler, &why);
    struct code_remote_counters counters;
    struct remote_report remote;
    const bool shared = code_service_remote(s->modules->service, &counters, &remote);

    rpc_write_text(out, "kernels");
    rpc_write_map(out, 4 + !usable + (trees > 0) + shared + (shared && *remote.why));
    if (shared)
        rpc_write_entry_text(out, "remote", remote_state_names[remote.state]);
    if (shared && *remote.why)
        rpc_write_entry_text(out, "remote_why", remote.why);
    rpc_write_entry_text(out, "policy", user_kernels_names[kernels_policy(c)]);
    rpc_write_entry_bool(out, "allowed", is_allowed(c));
    rpc_write_entry_text(out, "compiler", compiler_name(compiler));
    if (!usable)
        rpc_write_entry_text(out, "compiler_why", why.message);
    rpc_write_text(out, "arch");
    rpc_write_array(out, s->devices.count);
    for (unsigned i = 0; i < s->devices.count; i++) {
        module_default_arch(s->devices.all[i], arch);
        rpc_write_text(out, arch);
    }
    if (!trees)
        return;
    rpc_write_text(out, "include_extra");
    rpc_write_array(out, trees);
    for (unsigned i = 0; i < trees; i++)
        rpc_write_text(out, compiler_tree(compiler, i));
}

bool user_code_compiles(const struct connection *c)
{
    return is_allowed(c) && compiler_usable(code_service_compiler(c->server->modules->service), NULL);
}

void user_code_write_stats(struct rpc_output *out, const struct server *s, uint64_t launches)
{
    const struct code_counters n = code_service_counters(s->modules->service);
    struct code_remote_counters r;
    struct remote_report report;
    const bool shared = code_service_remote(s->modules->service, &r, &report);

    rpc_write_text(out, "kernels");
    rpc_write_map(out, shared ? 15 : 6);
    rpc_write_entry_uint(out, "compiles", n.compiles);
    rpc_write_entry_uint(out, "cache_memory_hits", n.memory_hits);
    rpc_write_entry_uint(out, "cache_disk_hits", n.disk_hits);
    rpc_write_entry_uint(out, "failures", n.failures);
    rpc_write_entry_uint(out, "single_flight_joins", n.joins);
    rpc_write_entry_uint(out, "launches", launches);
    if (!shared)
        return;
    rpc_write_entry_uint(out, "cache_remote_hits", r.hits);
    rpc_write_entry_uint(out, "remote_misses", r.misses);
    rpc_write_entry_uint(out, "remote_late", r.late);
    rpc_write_entry_uint(out, "remote_failures", r.failures);
    rpc_write_entry_uint(out, "remote_rejected", r.rejected);
    rpc_write_entry_uint(out, "remote_skipped", r.skipped);
    rpc_write_entry_uint(out, "remote_uploads", r.uploads);
    rpc_write_entry_uint(out, "remote_upload_failures", r.upload_failures);
    rpc_write_entry_uint(out, "remote_upload_drops", r.upload_drops);
}
