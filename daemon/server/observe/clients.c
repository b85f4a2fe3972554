/* The method `clients`: connections, users and devices; and the status line. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "server/code/code.h"
#include "server/exec/exec.h"
#include "server/memory/connection_resources.h"
#include "server/observe/executors.h"
#include "server/observe/latency.h"
#include "server/observe/observe.h"
#include "server/observe/room.h"
#include "server/peer/access.h"
#include "server/peer/back_pressure.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/clock.h"

static struct quantiles_map quantiles_of(const struct connection *c, enum latency_part part)
{
    static const double ps[] = {0.50, 0.90, 0.99, 0.999};
    const struct histogram *h = c->statistics->latencies ? &c->statistics->latencies->part[part] : NULL;
    double us[] = {NAN, NAN, NAN, NAN};

    if (h && h->count)
        histogram_percentiles(h, sizeof(ps) / sizeof(ps[0]), ps, us);
    return (struct quantiles_map){.count = h ? h->count : 0,
                                  .p50 = us[0],
                                  .p90 = us[1],
                                  .p99 = us[2],
                                  .p999 = us[3],
                                  .max = h && h->count ? h->max_us : NAN};
}

static void write_client(struct rpc_output *out, struct connection *c, const struct executors *executors, uint64_t now)
{
    const int executor = executors_pid(executors, connection_domain(c));

    connection_name_process(c);
    rpc_write_record(
        out,
        RECORD(client_map, .pid = (uint64_t)c->pid, .uid = c->peer_uid, .identity = identity_of(c->server, c->uid),
               .gid = c->gid, .client = c->client, .comm = c->comm,
               .connected_s = clock_us_between(c->connected_ns, now) * 1e-6, .requests = c->requests,
               .errors = c->errors, .inflight = c->inflight, .queued = exec_queued(c),
               .buffers = c->memory->buffers.used, .mapped_bytes = c->memory->mapped_bytes,
               .allocated_bytes = c->memory->allocated_bytes, .programs = exec_programs(c), .kernels = code_kernels(c),
               .bytes_in = connection_bytes_in(c), .bytes_out = connection_bytes_out(c),
               .output_bytes = buffer_length(&c->output.bytes) + (c->channel ? rpc_channel_pending(c->channel) : 0),
               .paused = !connection_may_read(c), .shm = c->channel != NULL, .device_us = c->statistics->device_us,
               .here = {true, c->statistics->here}, .isolation = isolation_names[c->isolation],
               .executor = {executor != 0, (uint64_t)executor},
               .latency = {.queue = quantiles_of(c, LATENCY_QUEUE),
                           .device = quantiles_of(c, LATENCY_DEVICE),
                           .total = quantiles_of(c, LATENCY_TOTAL)}));
}

static struct quotas_map limits_of(const struct quota_limits *limits)
{
#define X(NAME, name) .name = {limits->of[QUOTA_##NAME] != 0, limits->of[QUOTA_##NAME]},
    return (struct quotas_map){.messages_per_s = {limits->messages_per_s != 0, limits->messages_per_s},
                               .device_share = {limits->device_share != 0, limits->device_share},
                               QUOTA_KINDS(X)};
#undef X
}

/* Users that hold something in the daemon: connections, or memory that outlives them. */
struct users_walk {
    const struct connection *viewer;
    struct list **at;
};

static bool is_shown(const struct connection *viewer, const struct account *a)
{
    return a->references && may_see_account(viewer, a);
}

static void write_user(struct rpc_output *out, const void *of, uint32_t i)
{
    const struct users_walk *walk = of;
    const struct account *a;

    (void)i;
    do {
        *walk->at = (*walk->at)->next;
        a = list_entry(*walk->at, struct account, link);
    } while (!is_shown(walk->viewer, a));
#define X(NAME, name) .name = a->used[QUOTA_##NAME],
    rpc_write_record(out, RECORD(user_map, .uid = a->uid, .identity = identity_of(walk->viewer->server, a->uid),
                                 .requests = a->requests, .refused = a->refused, .device_us = a->device_us,
                                 .limits = limits_of(a->limits), QUOTA_KINDS(X)));
#undef X
}

static void write_device(struct rpc_output *out, const void *of, uint32_t i)
{
    const struct server *s = of;
    const struct backend_device *d = s->devices.all[i];
    const uint64_t unused = s->observe->sampling.memory_free[i];
    const struct conditions_map conditions = conditions_reply(&s->observe->sampling.conditions[i]);

    rpc_write_record(out, RECORD(load_map, .index = d->index, .name = d->info.name, .uuid = d->info.uuid,
                                 .busy_us = s->totals.device_us[i], .running = exec_jobs_on(s, d),
                                 .memory_total = {true, d->info.memory_bytes},
                                 .memory_free = {unused != UINT64_MAX, unused}, .conditions = &conditions));
}

/* Writes some of the connections. */
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
    rpc_patch_array_head(&reply->out, walk->count_at, walk->n_clients);
    return true;
}

static void walk_free(void *state)
{
    struct clients_walk *walk = state;

    list_remove(&walk->link);
    free(walk);
}

static bool clients_begin(struct long_reply *reply)
{
    const struct connection *viewer = reply->request->connection;
    struct server *s = viewer->server;
    struct clients_walk *walk = calloc(1, sizeof(*walk));
    struct list *at = &s->accounts.all;
    const struct users_walk users = {viewer, &at};
    uint32_t n_users = 0;

    if (!walk) {
        reply->failed = true;
        return true;
    }
    reply->state = walk;
    reply->free_state = walk_free;
    list_for_each_safe (node, after, &s->accounts.all)
        n_users += is_shown(viewer, list_entry(node, struct account, link));
    rpc_write_record(&reply->out, RECORD(clients_reply, .users = {n_users, write_user, &users},
                                         .devices = {s->devices.count, write_device, s},
                                         .state = server_state_names[server_state(s)],
                                         .uptime_s = clock_us_between(s->started_ns, clock_now_ns()) * 1e-6,
                                         .clients = {.n = UINT32_MAX}));
    walk->count_at = buffer_length(&reply->out.bytes);
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
