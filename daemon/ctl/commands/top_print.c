/* A view of kopsctl top as text and as JSON. */
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/table.h"
#include "base/text.h"
#include "top.h"
#include "view/clients.h"
#include "view/conditions.h"
#include "view/executors.h"
#include "view/stats.h"

void top_print_summary(const struct top_view *v, FILE *to)
{
    const struct kops_clients *s = v->now.clients;
    char a[32], b[32], c[32], at[32] = "", line[400];
    time_t now = time(NULL);
    struct tm tm;

    if (localtime_r(&now, &tm))
        strftime(at, sizeof(at), "%H:%M:%S", &tm);
    fprintf(to, "%s  %s, pid %lld, up %s: %s, %zu client%s\n", at, v->server, (long long)v->pid,
            text_duration(s->uptime_s, a, sizeof(a)), s->state, v->n_clients, v->n_clients == 1 ? "" : "s");
    fprintf(to, "%s requests/s, %s runs/s, %s errors/s; %llu in flight, %llu queued\n",
            text_rate(v->requests_s, a, sizeof(a)), text_rate(v->jobs_s, b, sizeof(b)),
            text_rate(v->errors_s, c, sizeof(c)), (unsigned long long)v->inflight, (unsigned long long)v->queued);
    for (size_t i = 0; i < v->n_devices; i++) {
        const struct kops_device_load *d = s->devices[i];

        fprintf(to, "device %u, %.48s: %s busy, %llu running", d->index, d->name,
                text_percent(v->device_shares[i], a, sizeof(a)), (unsigned long long)d->running);
        if (d->memory_total)
            fprintf(to, ", %s of %s free", text_bytes(d->memory_free, b, sizeof(b)),
                    text_bytes(d->memory_total, c, sizeof(c)));
        if (!*d->conditions.missing && *conditions_text(&d->conditions, &d->conditions, line, sizeof(line)))
            fprintf(to, ", %s", line);
        fprintf(to, "\n");
    }
}

static void cell_rate(struct table *t, double per_s)
{
    char text[32];

    table_cell(t, "%s", text_rate(per_s, text, sizeof(text)));
}

void top_print_clients(const struct top_view *v, FILE *to, size_t max_rows)
{
    char text[TABLE_CELL];
    struct table t;

    table_init(&t, "rllrrrrrrrrrrll",
               (const char *const[]){"pid", "user", "process", "req/s", "here/s", "err/s", "device", "p50 us", "p99 us",
                                     "in flight", "queued", "memory", "unread", "state", "calls itself"});
    for (size_t i = 0; i < v->n_clients; i++) {
        const struct top_client *c = &v->clients[i];
        const struct kops_client_info *info = c->info;

        table_cell(&t, "%lld", (long long)info->pid);
        table_cell(&t, "%s", text_owner(info->uid, info->identity, text, sizeof(text)));
        table_cell(&t, "%s", text_clean(*info->comm ? info->comm : "-", text, sizeof(text)));
        cell_rate(&t, c->requests_s);
        cell_rate(&t, c->here_s);
        cell_rate(&t, c->errors_s);
        table_cell(&t, "%s", text_percent(c->device_share, text, sizeof(text)));
        table_us(&t, info->latency.total.p50);
        table_us(&t, info->latency.total.p99);
        table_cell(&t, "%llu", (unsigned long long)info->inflight);
        table_cell(&t, "%llu", (unsigned long long)info->queued);
        table_cell(&t, "%s", text_bytes(info->mapped_bytes + info->allocated_bytes, text, sizeof(text)));
        table_cell(&t, "%s", text_bytes(info->output_bytes, text, sizeof(text)));
        table_cell(&t, "%s", view_client_state(info));
        table_cell(&t, "%s", text_clean(info->client, text, sizeof(text)));
    }
    table_write(&t, to, max_rows);
}

void top_print_executors(const struct top_view *v, FILE *to, size_t max_rows)
{
    executors_print(v->now.stats->executors, v->executor_shares, to, max_rows);
}

void top_print_ops(const struct top_view *v, FILE *to, size_t max_rows)
{
    struct table t;

    table_init(&t, "lllrrrrrrrl",
               (const char *const[]){"op", "dtype", "variant", "runs/s", "err/s", "queue p99 us", "exec p50 us", "p99",
                                     "total p50 us", "p99", "shapes"});
    for (size_t i = 0; i < v->n_ops; i++) {
        const struct kops_stats_row *row = v->ops[i].row;
        char text[TABLE_CELL];

        table_cell(&t, "%s", text_clean(row->op, text, sizeof(text)));
        table_cell(&t, "%s", row->dtype);
        table_cell(&t, "%s", row->variant);
        cell_rate(&t, v->ops[i].runs_s);
        cell_rate(&t, v->ops[i].errors_s);
        table_us(&t, row->queue_us.p99);
        table_us(&t, row->exec_us.p50);
        table_us(&t, row->exec_us.p99);
        table_us(&t, row->total_us.p50);
        table_us(&t, row->total_us.p99);
        stats_shapes(row, text, sizeof(text));
        table_cell(&t, "%s", text);
    }
    table_write(&t, to, max_rows);
}

/* ---- JSON ---- */

static void clients_json(const struct top_view *v)
{
    json_begin("clients", '[');
    for (size_t i = 0; i < v->n_clients; i++) {
        const struct top_client *c = &v->clients[i];

        json_begin(NULL, '{');
        view_client_json(c->info);
        json_number("requests_s", c->requests_s);
        json_number("errors_s", c->errors_s);
        json_number("here_s", c->here_s);
        json_number("device_share", c->device_share);
        json_end('}');
    }
    json_end(']');
}

static void view_executors_json(const struct top_view *v)
{
    json_begin("executors", '[');
    for (size_t i = 0; i < v->n_executors; i++) {
        json_begin(NULL, '{');
        executor_json(v->now.stats->executors[i]);
        json_number("device_share", v->executor_shares[i]);
        json_end('}');
    }
    json_end(']');
    executor_counts_json(v->now.stats);
}

static void ops_json(const struct top_view *v)
{
    json_begin("ops", '[');
    for (size_t i = 0; i < v->n_ops; i++) {
        json_begin(NULL, '{');
        stats_row_json(v->ops[i].row);
        json_number("runs_s", v->ops[i].runs_s);
        json_number("errors_s", v->ops[i].errors_s);
        json_end('}');
    }
    json_end(']');
}

void top_print_json(const struct top_view *v)
{
    const struct kops_clients *s = v->now.clients;
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    json_begin(NULL, '{');
    json_number("time", (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
    json_number("interval_s", v->interval_s);
    json_text("state", s->state);
    json_number("uptime_s", s->uptime_s);
    json_number("requests_s", v->requests_s);
    json_number("errors_s", v->errors_s);
    json_number("runs_s", v->jobs_s);
    json_uint("inflight", v->inflight);
    json_uint("queued", v->queued);
    json_begin("devices", '[');
    for (size_t i = 0; i < v->n_devices; i++) {
        json_begin(NULL, '{');
        view_device_json(s->devices[i]);
        json_number("busy_share", v->device_shares[i]);
        json_end('}');
    }
    json_end(']');
    view_executors_json(v);
    clients_json(v);
    view_users_json(s);
    ops_json(v);
    json_end('}');
}
