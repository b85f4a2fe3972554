#include "server/observe/clients.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "server/control/drain.h"
#include "server/observe/latency.h"
#include "server/observe/report.h"
#include "server/observe/sampling.h"
#include "server/peer/access.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/clock.h"

/* ---- who ---- */

bool may_see(const struct connection *viewer, uid_t uid)
{
    return viewer->uid == uid || access_allows(viewer, ACCESS_ADMINISTER);
}

bool may_see_account(const struct connection *viewer, const struct account *a)
{
    return viewer->account == a || may_see(viewer, a->uid);
}

void connection_name_process(struct connection *c)
{
    char path[40];
    ssize_t n;
    int fd;

    if (c->comm_known)
        return;
    c->comm_known = true;
    snprintf(path, sizeof(path), "/proc/%d/comm", (int)c->pid);
    fd = c->pid > 0 ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    n = read(fd, c->comm, sizeof(c->comm) - 1);
    close(fd);
    c->comm[n > 0 ? n : 0] = '\0';
    c->comm[strcspn(c->comm, "\n")] = '\0';
}

/* ---- what ---- */

uint64_t connection_bytes_in(const struct connection *c)
{
    uint64_t bytes = c->input.position + buffer_length(&c->input.bytes);

    if (c->channel)
        bytes += c->channel->input.position + buffer_length(&c->channel->input.bytes);
    return bytes;
}

uint64_t connection_bytes_out(const struct connection *c)
{
    return c->output.position + (c->channel ? c->channel->output.position : 0);
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
        write_histogram(out, keys[i], c->latencies ? &c->latencies->part[i] : NULL);
}

static void write_client(struct rpc_output *out, struct connection *c, uint64_t now)
{
    connection_name_process(c);
    rpc_write_map(out, 22);
    rpc_write_entry_uint(out, "pid", (uint64_t)c->pid);
    rpc_write_entry_uint(out, "uid", c->uid);
    rpc_write_entry_uint(out, "gid", c->gid);
    rpc_write_text(out, "client");
    rpc_write_any_text(out, c->client);
    rpc_write_text(out, "comm");
    rpc_write_any_text(out, c->comm);
    rpc_write_entry_double(out, "connected_s", clock_us_between(c->connected_ns, now) * 1e-6);
    rpc_write_entry_uint(out, "requests", c->requests);
    rpc_write_entry_uint(out, "errors", c->errors);
    rpc_write_entry_uint(out, "inflight", c->inflight);
    rpc_write_entry_uint(out, "queued", c->queued);
    rpc_write_entry_uint(out, "buffers", c->buffers.used);
    rpc_write_entry_uint(out, "mapped_bytes", c->mapped_bytes);
    rpc_write_entry_uint(out, "allocated_bytes", c->allocated_bytes);
    rpc_write_entry_uint(out, "programs", c->programs.used);
    rpc_write_entry_uint(out, "kernels", c->kernels.used);
    rpc_write_entry_uint(out, "bytes_in", connection_bytes_in(c));
    rpc_write_entry_uint(out, "bytes_out", connection_bytes_out(c));
    rpc_write_entry_uint(out, "output_bytes",
                         buffer_length(&c->output.bytes) + (c->channel ? rpc_channel_pending(c->channel) : 0));
    rpc_write_entry_bool(out, "paused", !connection_may_read(c));
    rpc_write_entry_bool(out, "shm", c->channel != NULL);
    rpc_write_entry_double(out, "device_us", c->device_us);
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

static void write_user(struct rpc_output *out, const struct account *a)
{
    rpc_write_map(out, 5 + QUOTA_COUNT);
    rpc_write_entry_uint(out, "uid", a->uid);
    for (unsigned i = 0; i < QUOTA_COUNT; i++)
        rpc_write_entry_uint(out, quota_names[i], a->used[i]);
    rpc_write_entry_uint(out, "requests", a->requests);
    rpc_write_entry_uint(out, "refused", a->refused);
    rpc_write_entry_double(out, "device_us", a->device_us);
    write_user_limits(out, a->all->limits);
}

/* Those who have something here: connections, or memory that outlives them. */
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
            write_user(out, a);
    }
}

static void write_devices(struct rpc_output *out, const struct server *s)
{
    rpc_write_text(out, "devices");
    rpc_write_array(out, s->devices.count);
    for (unsigned i = 0; i < s->devices.count; i++) {
        const struct backend_device *d = s->devices.all[i];
        const uint64_t unused = s->sampling.memory_free[i];

        rpc_write_map(out, 6 + (unused != UINT64_MAX));
        rpc_write_entry_uint(out, "index", d->index);
        rpc_write_entry_text(out, "name", d->info.name);
        rpc_write_entry_text(out, "uuid", d->info.uuid);
        rpc_write_entry_double(out, "busy_us", s->totals.device_us[i]);
        rpc_write_entry_uint(out, "running", s->jobs_running[i]);
        rpc_write_entry_uint(out, "memory_total", d->info.memory_bytes);
        if (unused != UINT64_MAX)
            rpc_write_entry_uint(out, "memory_free", unused);
    }
}

void handle_clients(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    (void)args;
    (void)fds;
    sampling_enqueue(r);
}

static bool clients_end(struct report *report)
{
    const struct server *s = report->request->connection->server;
    struct rpc_output *out = &report->out;

    rpc_patch_array_head(out, report->count_at, report->n_clients);
    write_users(out, report->request->connection);
    rpc_write_entry_text(out, "state", server_state_names[server_state(s)]);
    rpc_write_entry_double(out, "uptime_s", clock_us_between(s->started_ns, clock_now_ns()) * 1e-6);
    write_devices(out, s);
    return true;
}

/* Some of the connections; the last piece has the rest of the answer. */
static bool clients_next(struct report *report)
{
    enum { CLIENTS_A_PIECE = 32, LOOKS_A_PIECE = 1024 };
    const struct connection *viewer = report->request->connection;
    const uint64_t now = clock_now_ns();
    unsigned written = 0, looks = 0;

    while (report->at != &viewer->server->connections) {
        struct connection *c = list_entry(report->at, struct connection, link);

        if (written == CLIENTS_A_PIECE || looks++ == LOOKS_A_PIECE)
            return false;
        report->at = report->at->next;
        if (c->closed || !may_see(viewer, c->uid))
            continue;
        write_client(&report->out, c, now);
        written++;
        report->n_clients++;
    }
    return clients_end(report);
}

bool clients_begin(struct report *report)
{
    struct server *s = report->request->connection->server;

    rpc_write_map(&report->out, 5);
    rpc_write_text(&report->out, "clients");
    report->count_at = rpc_write_array_head(&report->out);
    report->at = s->connections.next;
    list_append(&s->walks, &report->walk);
    report->step = clients_next;
    return clients_next(report);
}

/* ---- one line for the service manager ---- */

void server_status_text(struct server *s, char *into, size_t size)
{
    const uint64_t now = clock_now_ns(), requests = s->counters.requests;
    const double seconds = clock_us_between(s->status_then.at_ns ? s->status_then.at_ns : s->started_ns, now) * 1e-6;
    const double rate = seconds > 0 ? (double)(requests - s->status_then.requests) / seconds : 0;
    char text[24];

    s->status_then.requests = requests;
    s->status_then.at_ns = now;
    if (rate < 1000)
        snprintf(text, sizeof(text), "%.0f", rate);
    else
        snprintf(text, sizeof(text), "%.1f%c", rate < 1e6 ? rate / 1e3 : rate / 1e6, rate < 1e6 ? 'k' : 'M');
    snprintf(into, size, "%s; %u client%s, %u job%s running, %s requests/s", server_state_names[server_state(s)],
             s->n_connections, s->n_connections == 1 ? "" : "s", s->n_jobs_running, s->n_jobs_running == 1 ? "" : "s",
             text);
}
