/* kopsctl top: the views as text and as JSON, and the command. top_sample.c looks at the daemon, top_screen.c is the
 * live view. */
#include "top.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/table.h"
#include "commands.h"
#include "view/measure.h"
#include "view/rows.h"

static const char usage[] =
    "Usage: kopsctl top [--delay SECONDS] [--sort KEY]\n"
    "       kopsctl top --batch [--iterations N] [--delay SECONDS] [--sort KEY] [--json]\n\n"
    "Shows the daemon's present work: rates, queues, the load of devices, the processes that do the GPU work\n"
    "(executors), each client, and the ops that ran since the last look. Percentiles begin when a client connects, or\n"
    "when the timings were started anew. Administrators (by default root and the daemon's own user) see every client,\n"
    "others their own.\n\n"
    "  -b, --batch            print tables instead, one after another, for scripts\n"
    "  -n, --iterations N     end after N looks (with --batch; default: no end)\n"
    "  -d, --delay SECONDS    time between two looks (default 2, at least 0.1)\n"
    "      --sort KEY         order of the clients: rate (the default), device, memory, p99, inflight, pid\n"
    "      --json             one line of JSON for each look (with --batch); shares are of one device's time, 1 is "
    "all\n\n"
    "Keys: q quit; p or space pause; r, d, m, l, i, n sort by rate, device, memory, p99, requests in flight, pid;\n"
    "+ and - look less and more often; up and down move through the clients.\n";

void top_print_summary(const struct top_view *v, FILE *to, size_t max_rows)
{
    const struct kops_clients *s = v->now.clients;
    char at[32] = "", line[400];
    time_t now = time(NULL);
    struct tm tm;

    if (localtime_r(&now, &tm))
        strftime(at, sizeof(at), "%H:%M:%S", &tm);
    fprintf(to, "%s  %s, pid %lld, up %s: %s, %zu client%s\n", at, v->server, (long long)v->pid,
            text_duration(s->uptime_s), s->state, v->n_clients, v->n_clients == 1 ? "" : "s");
    fprintf(to, "%s requests/s, %s runs/s, %s errors/s; %llu in flight, %llu queued\n", text_rate(v->requests_s),
            text_rate(v->jobs_s), text_rate(v->errors_s), (unsigned long long)v->inflight,
            (unsigned long long)v->queued);
    for (size_t i = 0; i < v->n_devices && i < max_rows; i++) {
        const struct kops_device_load *d = s->devices[i];

        fprintf(to, "device %u, %.48s: %s busy, %llu running", d->index, d->name, text_percent(v->device_shares[i]),
                (unsigned long long)d->running);
        if (d->memory_total)
            fprintf(to, ", %s of %s free", text_bytes(d->memory_free), text_bytes(d->memory_total));
        if (!*d->conditions.missing && *conditions_text(&d->conditions, &d->conditions, line, sizeof(line)))
            fprintf(to, ", %s", line);
        fprintf(to, "\n");
    }
}

void top_print_clients(const struct top_view *v, FILE *to, size_t max_rows)
{
    struct table t;

    table_init(&t, ">pid\tuser\tprocess\t>req/s\t>here/s\t>err/s\t>device\t>p50 us\t>p99 us\t>in flight\t>queued\t"
                   ">memory\t>unread\tstate\tcalls itself");
    for (size_t i = 0; i < v->n_clients; i++) {
        const struct top_client *c = &v->clients[i];
        const struct kops_client_info *info = c->info;

        table_row(&t, "%lld\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%llu\t%llu\t%s\t%s\t%s\t%s", (long long)info->pid,
                  text_owner(info->uid, info->identity), text_clean(*info->comm ? info->comm : "-"),
                  text_rate(c->requests_s), text_rate(c->here_s), text_rate(c->errors_s), text_percent(c->device_share),
                  text_us(info->latency.total.p50), text_us(info->latency.total.p99),
                  (unsigned long long)info->inflight, (unsigned long long)info->queued,
                  text_bytes(info->mapped_bytes + info->allocated_bytes), text_bytes(info->output_bytes),
                  client_state(info), text_clean(info->client));
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

    table_init(&t, "op\tdtype\tvariant\t>runs/s\t>err/s\t>queue p99 us\t>exec p50 us\t>p99\t>total p50 us\t>p99\t"
                   "shapes");
    for (size_t i = 0; i < v->n_ops; i++) {
        const struct kops_stats_row *row = v->ops[i].row;

        table_row(&t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s", text_clean(row->op), row->dtype, row->variant,
                  text_rate(v->ops[i].runs_s), text_rate(v->ops[i].errors_s), text_us(row->queue_us.p99),
                  text_us(row->exec_us.p50), text_us(row->exec_us.p99), text_us(row->total_us.p50),
                  text_us(row->total_us.p99), stats_shapes(row));
    }
    table_write(&t, to, max_rows);
}

static void print_json(const struct top_view *v)
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
    for (size_t i = 0; i < v->n_devices; i++)
        JSON_MAP(NULL, device_json(s->devices[i]), json_number("busy_share", v->device_shares[i]));
    json_end(']');
    json_begin("executors", '[');
    for (size_t i = 0; i < v->n_executors; i++)
        JSON_MAP(NULL, json_fields(executor_fields, v->now.stats->executors[i]),
                 json_number("device_share", v->executor_shares[i]));
    json_end(']');
    counters_map_json("executor_counts", v->now.stats->executor_counts);
    json_begin("clients", '[');
    for (size_t i = 0; i < v->n_clients; i++) {
        const struct top_client *c = &v->clients[i];

        JSON_MAP(NULL, json_fields(client_fields, c->info), json_number("requests_s", c->requests_s),
                 json_number("errors_s", c->errors_s), json_number("here_s", c->here_s),
                 json_number("device_share", c->device_share));
    }
    json_end(']');
    json_list("users", user_fields, s->users);
    json_begin("ops", '[');
    for (size_t i = 0; i < v->n_ops; i++)
        JSON_MAP(NULL, stats_row_json(v->ops[i].row), json_number("runs_s", v->ops[i].runs_s),
                 json_number("errors_s", v->ops[i].errors_s));
    json_end(']');
    json_end('}');
}

/* ---- the command ---- */

static void print_text(const struct top_view *v)
{
    top_print_summary(v, stdout, SIZE_MAX);
    printf("\n");
    top_print_executors(v, stdout, SIZE_MAX);
    if (v->n_executors)
        printf("\n");
    top_print_clients(v, stdout, SIZE_MAX);
    printf("\n");
    top_print_ops(v, stdout, SIZE_MAX);
    printf("\n");
}

/* `iterations` 0: no end. */
static enum ctl_exit batch(struct ctl *ctl, double delay_s, uint64_t iterations, enum top_sort by)
{
    struct top_view view = {.n_clients = 0};
    enum ctl_exit status = ctl_connect(ctl);
    sigset_t none;

    if (status)
        return status;
    sigemptyset(&none);
    /* The first look is what rates are counted from. */
    for (uint64_t i = 0; !status && (!iterations || i <= iterations); i++) {
        if (i)
            ctl_wait(&none, ctl_clock_ns() + (uint64_t)(delay_s * 1e9));
        if (top_look(ctl, &view, &ctl->error))
            status = ctl_failed("top", &ctl->error);
        if (status || !i)
            continue;
        top_sort(&view, by);
        if (ctl->json)
            print_json(&view);
        else
            print_text(&view);
        if (fflush(stdout)) /* main() says why */
            status = CTL_FAILED;
    }
    top_free(&view);
    return status;
}

#ifndef KOPS_CTL_SCREEN
enum ctl_exit top_screen(struct ctl *ctl, double delay_s, enum top_sort by)
{
    (void)ctl;
    (void)delay_s;
    (void)by;
    return ctl_complain("unsupported",
                        "this kopsctl was built without ncurses and has no live view; `kopsctl top --batch` prints "
                        "tables instead");
}
#endif

enum ctl_exit ctl_top(struct ctl *ctl, int argc, char **argv)
{
    uint64_t iterations = 0;
    enum top_sort by = TOP_BY_RATE;
    bool is_batch = false;
    double delay_s = 2;
    const struct ctl_option options[] = {
        {"--batch", 'b', OPTION_FLAG, &is_batch},
        {"--iterations", 'n', OPTION_NUMBER, &iterations, "takes a number from 1 on", 1},
        {"--delay", 'd', OPTION_SECONDS, &delay_s, "takes seconds from 0.1 on", 0.1, 86400},
        {"--sort", 0, OPTION_WORD, &by, "takes rate, device, memory, p99, inflight or pid", .words = top_sort_names},
        {0}};
    enum ctl_exit status;

    if (!ctl_parse(ctl, argc, argv, usage, options, 0, &status))
        return status;
    if (is_batch)
        return batch(ctl, delay_s, iterations, by);
    if (iterations || ctl->json)
        return ctl_usage("%s needs --batch", iterations ? "--iterations" : "--json");
    return top_screen(ctl, delay_s, by);
}
