/* kopsctl clients */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "admin.h"
#include "json.h"
#include "table.h"
#include "text.h"

static const char usage[] =
    "Usage: kopsctl clients [--users] [--json]\n\n"
    "Lists the daemon's connections with their memory, requests and latency. Administrators (by default root and the\n"
    "daemon's own user) see all connections, others their own.\n\n"
    "      --users   add a table of users: the use of all connections of a user together, and the limits\n"
    "      --json    print JSON: clients, users and devices\n";

/* ---- JSON ---- */

static void quantiles_json(const char *key, const struct kops_quantiles *q)
{
    json_begin(key, '{');
    json_uint("count", q->count);
    json_number("p50", q->p50);
    json_number("p90", q->p90);
    json_number("p99", q->p99);
    json_number("p999", q->p999);
    json_number("max", q->max);
    json_end('}');
}

void admin_client_json(const struct kops_client_info *c)
{
    json_int("pid", c->pid);
    json_int("uid", c->uid);
    json_int("gid", c->gid);
    json_text("client", c->client);
    json_text("comm", c->comm);
    json_number("connected_s", c->connected_s);
    json_uint("requests", c->requests);
    json_uint("errors", c->errors);
    json_uint("inflight", c->inflight);
    json_uint("queued", c->queued);
    json_uint("buffers", c->buffers);
    json_uint("mapped_bytes", c->mapped_bytes);
    json_uint("allocated_bytes", c->allocated_bytes);
    json_uint("programs", c->programs);
    json_uint("kernels", c->kernels);
    json_uint("bytes_in", c->bytes_in);
    json_uint("bytes_out", c->bytes_out);
    json_uint("output_bytes", c->output_bytes);
    json_bool("paused", c->paused);
    json_bool("shm", c->shm);
    json_number("device_us", c->device_us);
    json_begin("latency", '{');
    quantiles_json("queue", &c->latency.queue);
    quantiles_json("device", &c->latency.device);
    quantiles_json("total", &c->latency.total);
    json_end('}');
}

void admin_device_json(const struct kops_device_load *d)
{
    json_uint("index", d->index);
    json_text("name", d->name);
    json_text("uuid", d->uuid);
    json_number("busy_us", d->busy_us);
    json_uint("running", d->running);
    if (d->memory_total) {
        json_uint("memory_total", d->memory_total);
        json_uint("memory_free", d->memory_free);
    }
}

static void limit_json(const char *key, uint64_t limit)
{
    if (limit != KOPS_NO_LIMIT)
        json_uint(key, limit);
}

void admin_user_json(const struct kops_user_info *u)
{
    json_int("uid", u->uid);
    json_uint("connections", u->connections);
    json_uint("buffers", u->buffers);
    json_uint("mappings", u->mappings);
    json_uint("mapped_bytes", u->mapped_bytes);
    json_uint("allocated_bytes", u->allocated_bytes);
    json_uint("host_bytes", u->host_bytes);
    json_uint("program_bytes", u->program_bytes);
    json_uint("waiting_bytes", u->waiting_bytes);
    json_uint("inflight", u->inflight);
    json_uint("fds", u->fds);
    json_uint("kernel_bytes", u->kernel_bytes);
    json_uint("requests", u->requests);
    json_uint("refused", u->refused);
    json_number("device_us", u->device_us);
    json_begin("limits", '{');
    limit_json("connections", u->limits.connections);
    limit_json("buffers", u->limits.buffers);
    limit_json("mappings", u->limits.mappings);
    limit_json("mapped_bytes", u->limits.mapped_bytes);
    limit_json("allocated_bytes", u->limits.allocated_bytes);
    limit_json("host_bytes", u->limits.host_bytes);
    limit_json("program_bytes", u->limits.program_bytes);
    limit_json("waiting_bytes", u->limits.waiting_bytes);
    limit_json("inflight", u->limits.inflight);
    limit_json("fds", u->limits.fds);
    limit_json("kernel_bytes", u->limits.kernel_bytes);
    limit_json("messages_per_s", u->limits.messages_per_s);
    limit_json("device_share", u->limits.device_share);
    json_end('}');
}

static void print_json(const struct kops_clients *s)
{
    json_begin(NULL, '{');
    json_text("state", s->state);
    json_number("uptime_s", s->uptime_s);
    json_begin("clients", '[');
    for (const struct kops_client_info *const *c = s->clients; *c; c++) {
        json_begin(NULL, '{');
        admin_client_json(*c);
        json_end('}');
    }
    json_end(']');
    json_begin("users", '[');
    for (const struct kops_user_info *const *u = s->users; *u; u++) {
        json_begin(NULL, '{');
        admin_user_json(*u);
        json_end('}');
    }
    json_end(']');
    json_begin("devices", '[');
    for (const struct kops_device_load *const *d = s->devices; *d; d++) {
        json_begin(NULL, '{');
        admin_device_json(*d);
        json_end('}');
    }
    json_end(']');
    json_end('}');
}

/* ---- tables ---- */

static void cell_user(struct table *t, int64_t uid)
{
    char text[TABLE_CELL];

    table_cell(t, "%s", text_user(uid, text, sizeof(text)));
}

static void cell_bytes(struct table *t, uint64_t bytes)
{
    char text[TABLE_CELL];

    table_cell(t, "%s", text_bytes(bytes, text, sizeof(text)));
}

const char *admin_client_state(const struct kops_client_info *c)
{
    return c->paused ? "paused" : c->inflight ? "busy" : "idle";
}

static void clients_text(const struct kops_clients *s)
{
    char text[TABLE_CELL];
    struct table t;

    table_init(&t, "rllrrrrrrrrrrll",
               (const char *const[]){"pid", "user", "process", "for s", "requests", "errors", "in flight", "queued",
                                     "buffers", "mapped", "allocated", "p50 us", "p99 us", "state", "calls itself"});
    for (const struct kops_client_info *const *p = s->clients; *p; p++) {
        const struct kops_client_info *c = *p;

        table_cell(&t, "%lld", (long long)c->pid);
        cell_user(&t, c->uid);
        table_cell(&t, "%s", text_clean(*c->comm ? c->comm : "-", text, sizeof(text)));
        table_cell(&t, "%.0f", c->connected_s);
        table_cell(&t, "%llu", (unsigned long long)c->requests);
        table_cell(&t, "%llu", (unsigned long long)c->errors);
        table_cell(&t, "%llu", (unsigned long long)c->inflight);
        table_cell(&t, "%llu", (unsigned long long)c->queued);
        table_cell(&t, "%llu", (unsigned long long)c->buffers);
        cell_bytes(&t, c->mapped_bytes);
        cell_bytes(&t, c->allocated_bytes);
        table_us(&t, c->latency.total.p50);
        table_us(&t, c->latency.total.p99);
        table_cell(&t, "%s", admin_client_state(c));
        table_cell(&t, "%s", text_clean(c->client, text, sizeof(text)));
    }
    table_print(&t);
}

/* "3 of 1024"; a limit that there is not is left out. */
static void cell_of(struct table *t, uint64_t n, uint64_t limit)
{
    if (limit == KOPS_NO_LIMIT)
        table_cell(t, "%llu", (unsigned long long)n);
    else
        table_cell(t, "%llu of %llu", (unsigned long long)n, (unsigned long long)limit);
}

static void cell_bytes_of(struct table *t, uint64_t n, uint64_t limit)
{
    char text[32], of[32];

    if (limit == KOPS_NO_LIMIT)
        cell_bytes(t, n);
    else
        table_cell(t, "%s of %s", text_bytes(n, text, sizeof(text)), text_bytes(limit, of, sizeof(of)));
}

static void users_text(const struct kops_clients *s)
{
    struct table t;

    table_init(&t, "lrrrrrrrrrrrrrr",
               (const char *const[]){"user", "connections", "buffers", "mappings", "mapped", "allocated", "host memory",
                                     "programs", "waiting", "in flight", "descriptors", "kernels", "requests",
                                     "refused", "device s"});
    for (const struct kops_user_info *const *p = s->users; *p; p++) {
        const struct kops_user_info *u = *p;

        cell_user(&t, u->uid);
        cell_of(&t, u->connections, u->limits.connections);
        cell_of(&t, u->buffers, u->limits.buffers);
        cell_of(&t, u->mappings, u->limits.mappings);
        cell_bytes_of(&t, u->mapped_bytes, u->limits.mapped_bytes);
        cell_bytes_of(&t, u->allocated_bytes, u->limits.allocated_bytes);
        cell_bytes_of(&t, u->host_bytes, u->limits.host_bytes);
        cell_bytes_of(&t, u->program_bytes, u->limits.program_bytes);
        cell_bytes_of(&t, u->waiting_bytes, u->limits.waiting_bytes);
        cell_of(&t, u->inflight, u->limits.inflight);
        cell_of(&t, u->fds, u->limits.fds);
        cell_bytes_of(&t, u->kernel_bytes, u->limits.kernel_bytes);
        table_cell(&t, "%llu", (unsigned long long)u->requests);
        table_cell(&t, "%llu", (unsigned long long)u->refused);
        if (isnan(u->device_us))
            table_cell(&t, "-");
        else
            table_cell(&t, "%.3f", u->device_us * 1e-6);
    }
    printf("\n");
    table_print(&t);
}

enum ctl_exit ctl_clients(struct ctl *ctl, int argc, char **argv)
{
    static const struct option options[] = {{"users", no_argument, NULL, 'u'}, CTL_COMMON_OPTIONS};
    struct kops_clients *clients;
    struct kops_error error;
    enum ctl_exit status;
    bool users = false;
    int option, end;

    while ((option = getopt_long(argc, argv, "uh", options, NULL)) != -1) {
        if (option == 'u')
            users = true;
        else if ((end = ctl_common(ctl, option, usage)) >= 0)
            return (enum ctl_exit)end;
    }
    if (optind < argc)
        return ctl_usage("clients takes no `%s`", argv[optind]);
    status = ctl_connect(ctl);
    if (status)
        return status;
    if (kops_clients(ctl->client, &clients, &error))
        return ctl_failed("clients", &error);
    if (ctl->json) {
        print_json(clients);
    } else {
        clients_text(clients);
        if (users)
            users_text(clients);
        if (strcmp(clients->state, "serving") != 0)
            printf("the daemon is %s\n", clients->state);
    }
    kops_clients_free(clients);
    return CTL_OK;
}
