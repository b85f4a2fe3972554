#include "server/observe/clients.h"

#include <stdio.h>
#include <stdlib.h>

#include "server/code/code.h"
#include "server/exec/exec.h"
#include "server/memory/connection_resources.h"
#include "server/observe/conditions.h"
#include "server/observe/executors.h"
#include "server/observe/latency.h"
#include "server/observe/observe.h"
#include "server/observe/room.h"
#include "server/observe/sampling.h"
#include "server/peer/access.h"
#include "server/peer/back_pressure.h"
#include "server/peer/connection.h"
#include "server/peer/long_reply.h"
#include "server/peer/request.h"
#include "util/clock.h"

/* ---- visibility ---- */

bool may_see(const struct connection *viewer, uid_t uid)
{
    return viewer->uid == uid || access_allows(viewer, ACCESS_ADMINISTER);
}

bool may_see_account(const struct connection *viewer, const struct account *a)
{
    return viewer->account == a || may_see(viewer, a->uid);
}

void write_identity(struct rpc_output *out, const struct server *s, uid_t number)
{
    if (uid_is_identity(number))
        rpc_write_entry_text(out, "identity", identities_name(&s->accounts.identities, number));
}

/* ---- the method ---- */

static void write_histogram(struct rpc_output *out, const char *key, const struct histogram *h)
{
    static const double ps[] = {0.50, 0.90, 0.99, 0.999};
    const bool any = h && h->count;
    double us[sizeof(ps) / sizeof(ps[0])];

    rpc_write_text(out, key);
    rpc_write_map(out, any ? 6 : 1);
    rpc_write_entry_uint(out, "count", any ? h->count : 0);
    if (!any)
        return;
    histogram_percentiles(h, sizeof(ps) / sizeof(ps[0]), ps, us);
    rpc_write_entry_double(out, "p50", us[0]);
    rpc_write_entry_double(out, "p90", us[1]);
    rpc_write_entry_double(out, "p99", us[2]);
    rpc_write_entry_double(out, "p999", us[3]);
    rpc_write_entry_double(out, "max", h->max_us);
}

static void write_latency(struct rpc_output *out, const struct connection *c)
{
    static const char *const keys[LATENCY_PARTS] = {
        [LATENCY_QUEUE] = "queue", [LATENCY_DEVICE] = "device", [LATENCY_TOTAL] = "total"};

    rpc_write_text(out, "latency");
    rpc_write_map(out, LATENCY_PARTS);
    for (unsigned i = 0; i < LATENCY_PARTS; i++)
        write_histogram(out, keys[i], c->statistics->latencies ? &c->statistics->latencies->part[i] : NULL);
}

static void write_client(struct rpc_output *out, struct connection *c, const struct executors *executors, uint64_t now)
{
    const int executor = executors_pid(executors, connection_domain(c));

    connection_name_process(c);
    rpc_write_map(out, 24 + (executor != 0) + (c->identity != NULL));
    rpc_write_entry_uint(out, "pid", (uint64_t)c->pid);
    rpc_write_entry_uint(out, "uid", c->peer_uid);
    write_identity(out, c->server, c->uid);
    rpc_write_entry_uint(out, "gid", c->gid);
    rpc_write_text(out, "client");
    rpc_write_any_text(out, c->client);
    rpc_write_text(out, "comm");
    rpc_write_any_text(out, c->comm);
    rpc_write_entry_double(out, "connected_s", clock_us_between(c->connected_ns, now) * 1e-6);
    rpc_write_entry_uint(out, "requests", c->requests);
    rpc_write_entry_uint(out, "errors", c->errors);
    rpc_write_entry_uint(out, "inflight", c->inflight);
    rpc_write_entry_uint(out, "queued", exec_queued(c));
    rpc_write_entry_uint(out, "buffers", c->memory->buffers.used);
    rpc_write_entry_uint(out, "mapped_bytes", c->memory->mapped_bytes);
    rpc_write_entry_uint(out, "allocated_bytes", c->memory->allocated_bytes);
    rpc_write_entry_uint(out, "programs", exec_programs(c));
    rpc_write_entry_uint(out, "kernels", code_kernels(c));
    rpc_write_entry_uint(out, "bytes_in", connection_bytes_in(c));
    rpc_write_entry_uint(out, "bytes_out", connection_bytes_out(c));
    rpc_write_entry_uint(out, "output_bytes",
                         buffer_length(&c->output.bytes) + (c->channel ? rpc_channel_pending(c->channel) : 0));
    rpc_write_entry_bool(out, "paused", !connection_may_read(c));
    rpc_write_entry_bool(out, "shm", c->channel != NULL);
    rpc_write_entry_double(out, "device_us", c->statistics->device_us);
    rpc_write_entry_uint(out, "here", c->statistics->here);
    rpc_write_entry_text(out, "isolation", isolation_names[c->isolation]);
    if (executor)
        rpc_write_entry_uint(out, "executor", (uint64_t)executor);
    write_latency(out, c);
}

static void write_user_limits(struct rpc_output *out, const struct quota_limits *limits)
{
    uint32_t n = (limits->messages_per_s != 0) + (limits->device_share != 0);

    for (unsigned i = 0; i < QUOTA_COUNT; i++)
        n += limits->of[i] != 0;
    rpc_write_text(out, "limits");
    rpc_write_map(out, n);
    for (unsigned i = 0; i < QUOTA_COUNT; i++)
        if (limits->of[i])
            rpc_write_entry_uint(out, quota_names[i], limits->of[i]);
    if (limits->messages_per_s)
        rpc_write_entry_uint(out, "messages_per_s", limits->messages_per_s);
    if (limits->device_share)
        rpc_write_entry_uint(out, "device_share", limits->device_share);
}

static void write_user(struct rpc_output *out, const struct server *s, const struct account *a)
{
    rpc_write_map(out, 5 + QUOTA_COUNT + uid_is_identity(a->uid));
    rpc_write_entry_uint(out, "uid", a->uid);
    write_identity(out, s, a->uid);
    for (unsigned i = 0; i < QUOTA_COUNT; i++)
        rpc_write_entry_uint(out, quota_names[i], a->used[i]);
    rpc_write_entry_uint(out, "requests", a->requests);
    rpc_write_entry_uint(out, "refused", a->refused);
    rpc_write_entry_double(out, "device_us", a->device_us);
    write_user_limits(out, a->limits);
}

/* Writes the users that hold something in the daemon: connections, or memory that outlives them. */
static void write_users(struct rpc_output *out, const struct connection *viewer)
{
    struct list *const all = &viewer->server->accounts.all;
    uint32_t n = 0;

    list_for_each_safe (node, after, all) {
        const struct account *a = list_entry(node, struct account, link);

        n += a->references && may_see_account(viewer, a);
    }
    rpc_write_text(out, "users");
    rpc_write_array(out, n);
    list_for_each_safe (node, after, all) {
        const struct account *a = list_entry(node, struct account, link);

        if (a->references && may_see_account(viewer, a))
            write_user(out, viewer->server, a);
    }
}

static void write_devices(struct rpc_output *out, const struct server *s)
{
    rpc_write_text(out, "devices");
    rpc_write_array(out, s->devices.count);
    for (unsigned i = 0; i < s->devices.count; i++) {
        const struct backend_device *d = s->devices.all[i];
        const uint64_t unused = s->observe->sampling.memory_free[i];

        rpc_write_map(out, 7 + (unused != UINT64_MAX));
        rpc_write_entry_uint(out, "index", d->index);
        rpc_write_entry_text(out, "name", d->info.name);
        rpc_write_entry_text(out, "uuid", d->info.uuid);
        rpc_write_entry_double(out, "busy_us", s->totals.device_us[i]);
        rpc_write_entry_uint(out, "running", exec_jobs_on(s, d));
        rpc_write_entry_uint(out, "memory_total", d->info.memory_bytes);
        if (unused != UINT64_MAX)
            rpc_write_entry_uint(out, "memory_free", unused);
        conditions_write(out, &s->observe->sampling.conditions[i]);
    }
}

static bool clients_end(struct long_reply *reply)
{
    const struct server *s = reply->request->connection->server;
    const struct clients_walk *walk = reply->state;
    struct rpc_output *out = &reply->out;

    rpc_patch_array_head(out, walk->count_at, walk->n_clients);
    write_users(out, reply->request->connection);
    rpc_write_entry_text(out, "state", server_state_names[server_state(s)]);
    rpc_write_entry_double(out, "uptime_s", clock_us_between(s->started_ns, clock_now_ns()) * 1e-6);
    write_devices(out, s);
    return true;
}

/* Writes some of the connections; the last piece has the rest of the answer. */
static bool clients_next(struct long_reply *reply)
{
    enum { CLIENTS_A_PIECE = 32, LOOKS_A_PIECE = 1024 };
    const struct connection *viewer = reply->request->connection;
    struct clients_walk *walk = reply->state;
    const uint64_t now = clock_now_ns();
    unsigned written = 0, looks = 0;
    struct executors executors;

    executors_look(viewer->server, &executors);
    while (walk->at != peers_connections(viewer->server)) {
        struct connection *c = list_entry(walk->at, struct connection, link);

        if (written == CLIENTS_A_PIECE || looks++ == LOOKS_A_PIECE)
            return false;
        walk->at = walk->at->next;
        if (c->closed || !may_see(viewer, c->uid))
            continue;
        write_client(&reply->out, c, &executors, now);
        written++;
        walk->n_clients++;
    }
    return clients_end(reply);
}

static void walk_free(void *state)
{
    struct clients_walk *walk = state;

    list_remove(&walk->link);
    free(walk);
}

static bool clients_begin(struct long_reply *reply)
{
    struct server *s = reply->request->connection->server;
    struct clients_walk *walk = calloc(1, sizeof(*walk));

    if (!walk) {
        reply->failed = true;
        return true;
    }
    reply->state = walk;
    reply->free_state = walk_free;
    rpc_write_map(&reply->out, 5);
    rpc_write_text(&reply->out, "clients");
    walk->count_at = rpc_write_array_head(&reply->out);
    walk->at = peers_connections(s)->next;
    list_append(&s->observe->walks, &walk->link);
    reply->step = clients_next;
    return clients_next(reply);
}

void handle_clients(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    (void)args;
    (void)fds;
    sampling_enqueue(r, clients_begin);
}

/* ---- one line for the service manager ---- */

void server_status_text(struct server *s, char *into, size_t size)
{
    const uint64_t now = clock_now_ns(), requests = s->counters.requests;
    const double seconds =
        clock_us_between(s->observe->status_then.at_ns ? s->observe->status_then.at_ns : s->started_ns, now) * 1e-6;
    const double rate = seconds > 0 ? (double)(requests - s->observe->status_then.requests) / seconds : 0;
    char text[24];

    s->observe->status_then.requests = requests;
    s->observe->status_then.at_ns = now;
    if (rate < 1000)
        snprintf(text, sizeof(text), "%.0f", rate);
    else
        snprintf(text, sizeof(text), "%.1f%c", rate < 1e6 ? rate / 1e3 : rate / 1e6, rate < 1e6 ? 'k' : 'M');
    snprintf(into, size, "%s; %u client%s, %u job%s running, %s requests/s", server_state_names[server_state(s)],
             peers_open_connections(s), peers_open_connections(s) == 1 ? "" : "s", exec_jobs(s),
             exec_jobs(s) == 1 ? "" : "s", text);
}
