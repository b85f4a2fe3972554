/* kopsctl top: the changes between two looks at the daemon, as text and JSON. top_screen.c is the live view. */
#include "top.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/output.h"
#include "commands.h"
#include "view/rows.h"

/* The time of connecting, by the daemon's clock, tells connections of one process apart. */
static const double same_start_s = 0.002;

static void sample_free(struct top_sample *s)
{
    s->clients = kops_clients_free(s->clients);
    s->stats = kops_stats_free(s->stats);
}

static void free_lists(struct top_view *v)
{
    free(v->clients);
    free(v->ops);
    free(v->device_shares);
    free(v->executor_shares);
}

void top_free(struct top_view *v)
{
    free_lists(v);
    sample_free(&v->now);
    sample_free(&v->before);
    memset(v, 0, sizeof(*v));
}

static size_t length(const void *list)
{
    const void *const *item = list;
    size_t n = 0;

    while (item[n])
        n++;
    return n;
}

/* NAN where there is nothing to compare with. A count that became smaller was started anew. */
static double rate(const struct top_view *v, uint64_t now, uint64_t before)
{
    return (double)(now >= before ? now - before : now) / v->interval_s;
}

static double share(const struct top_view *v, double now_us, double before_us)
{
    return (now_us >= before_us ? now_us - before_us : now_us) * 1e-6 / v->interval_s;
}

/* ---- values of the reading before: NULL or 0 for what that reading did not have ---- */

static double started(const struct kops_clients *s, const struct kops_client_info *c)
{
    return s->uptime_s - c->connected_s;
}

static const struct kops_client_info *client_before(const struct top_view *v, const struct kops_client_info *c)
{
    const struct kops_clients *s = v->before.clients;
    const double start = started(v->now.clients, c);

    for (size_t i = 0; s && s->clients[i]; i++) {
        const struct kops_client_info *p = s->clients[i];

        if (p->pid == c->pid && fabs(started(s, p) - start) < same_start_s && p->requests <= c->requests)
            return p;
    }
    return NULL;
}

/* A pid that was used again belongs to a younger process. */
static double executor_us_before(const struct top_view *v, const struct kops_executor *x)
{
    const struct kops_stats *s = v->before.stats;
    double us = 0;

    for (size_t i = 0; s && s->executors[i]; i++)
        if (s->executors[i]->pid == x->pid && s->executors[i]->uptime_s < x->uptime_s)
            us = s->executors[i]->device_us;
    return us;
}

static bool same_row(const struct kops_stats_row *a, const struct kops_stats_row *b)
{
    if (a->uid != b->uid || a->n_shapes != b->n_shapes || strcmp(a->op, b->op) != 0 ||
        strcmp(a->dtype, b->dtype) != 0 || strcmp(a->variant, b->variant) != 0 || strcmp(a->device, b->device) != 0)
        return false;
    for (size_t i = 0; i < a->n_shapes; i++)
        if (a->shapes[i].rank != b->shapes[i].rank ||
            memcmp(a->shapes[i].dims, b->shapes[i].dims, a->shapes[i].rank * sizeof(a->shapes[i].dims[0])) != 0)
            return false;
    return true;
}

/* Rows come in about the same order each time: the search begins where the last one ended. */
static const struct kops_stats_row *row_before(const struct top_view *v, const struct kops_stats_row *row, size_t n,
                                               size_t *hint)
{
    for (size_t i = 0; i < n; i++) {
        const size_t at = (*hint + i) % n;

        if (same_row(v->before.stats->rows[at], row)) {
            *hint = at + 1;
            return v->before.stats->rows[at];
        }
    }
    return NULL;
}

static uint64_t counter(const struct kops_stats *s, const char *name)
{
    for (size_t i = 0; s && s->counters[i]; i++)
        if (!strcmp(s->counters[i]->name, name))
            return s->counters[i]->value;
    return 0;
}

static double counter_rate(const struct top_view *v, const char *name)
{
    return rate(v, counter(v->now.stats, name), counter(v->before.stats, name));
}

static void compare_clients(struct top_view *v)
{
    static const struct kops_client_info nothing;

    for (size_t i = 0; i < v->n_clients; i++) {
        const struct kops_client_info *now = v->now.clients->clients[i], *before = client_before(v, now);

        before = before ? before : &nothing;
        v->inflight += now->inflight;
        v->queued += now->queued;
        v->clients[i] = (struct top_client){.info = now,
                                            .requests_s = rate(v, now->requests, before->requests),
                                            .errors_s = rate(v, now->errors, before->errors),
                                            .here_s = rate(v, now->here, before->here),
                                            .device_share = share(v, now->device_us, before->device_us)};
    }
}

static void compare_devices(struct top_view *v)
{
    const size_t n_before = isnan(v->interval_s) ? 0 : length(v->before.clients->devices);

    for (size_t i = 0; i < v->n_devices; i++) {
        const struct kops_device_load *now = v->now.clients->devices[i];
        const struct kops_device_load *before = i < n_before ? v->before.clients->devices[i] : NULL;

        v->device_shares[i] =
            before && !strcmp(before->uuid, now->uuid) ? share(v, now->busy_us, before->busy_us) : (double)NAN;
    }
    for (size_t i = 0; i < v->n_executors; i++) {
        const struct kops_executor *x = v->now.stats->executors[i];

        v->executor_shares[i] = share(v, x->device_us, executor_us_before(v, x));
    }
}

static void compare_ops(struct top_view *v)
{
    const size_t n_before = isnan(v->interval_s) ? 0 : length(v->before.stats->rows);
    size_t hint = 0;

    for (size_t i = 0; v->now.stats->rows[i]; i++) {
        const struct kops_stats_row *now = v->now.stats->rows[i], *before = row_before(v, now, n_before, &hint);
        const struct top_op op = {.row = now,
                                  .runs_s = rate(v, now->count, before ? before->count : 0),
                                  .errors_s = rate(v, now->errors, before ? before->errors : 0)};

        if (op.runs_s > 0 || op.errors_s > 0 || isnan(op.runs_s))
            v->ops[v->n_ops++] = op;
    }
}

static bool make_lists(struct top_view *v)
{
    v->n_clients = length(v->now.clients->clients);
    v->n_devices = length(v->now.clients->devices);
    v->n_executors = length(v->now.stats->executors);
    v->clients = calloc(v->n_clients + 1, sizeof(*v->clients));
    v->device_shares = calloc(v->n_devices + 1, sizeof(*v->device_shares));
    v->executor_shares = calloc(v->n_executors + 1, sizeof(*v->executor_shares));
    v->ops = calloc(length(v->now.stats->rows) + 1, sizeof(*v->ops));
    return v->clients && v->device_shares && v->executor_shares && v->ops;
}

enum kops_code top_look(struct ctl *ctl, struct top_view *v, struct kops_error *error)
{
    struct top_view next = {.before = v->now, .interval_s = (double)NAN};
    enum kops_code r = kops_clients(ctl->client, &next.now.clients, error);
    const struct kops_info *info;

    if (!r)
        r = kops_stats_get(ctl->client, NULL, &next.now.stats, error);
    if (!r && !make_lists(&next)) {
        error->code = r = KOPS_ERR_NO_MEMORY;
        snprintf(error->message, sizeof(error->message), "there is no memory for the lists");
    }
    if (r) {
        sample_free(&next.now);
        free_lists(&next);
        return r;
    }
    info = kops_info(ctl->client);
    snprintf(next.server, sizeof(next.server), "%s", text_clean(info->server));
    next.pid = info->pid;
    /* A daemon that was started anew has nothing to compare with. */
    if (next.before.clients && next.pid == v->pid && next.now.clients->uptime_s > next.before.clients->uptime_s)
        next.interval_s = next.now.clients->uptime_s - next.before.clients->uptime_s;
    compare_clients(&next);
    compare_devices(&next);
    compare_ops(&next);
    next.requests_s = counter_rate(&next, "requests");
    next.errors_s = counter_rate(&next, "errors");
    next.jobs_s = counter_rate(&next, "jobs");
    free_lists(v);
    sample_free(&v->before);
    *v = next;
    return KOPS_OK;
}

static enum top_sort order; /* order for the comparison: qsort() passes no context */

static double client_key(const struct top_client *c)
{
    switch (order) {
    case TOP_BY_DEVICE:
        return c->device_share;
    case TOP_BY_MEMORY:
        return (double)(c->info->mapped_bytes + c->info->allocated_bytes);
    case TOP_BY_P99:
        return c->info->latency.total.p99;
    case TOP_BY_INFLIGHT:
        return (double)c->info->inflight;
    case TOP_BY_PID:
        return -(double)c->info->pid;
    default:
        return c->requests_s;
    }
}

/* The larger first, unknown values last, and always the same order of equal ones. */
static int compare_keys(double a, double b, double x, double y)
{
    if (isnan(a) != isnan(b))
        return isnan(a) ? 1 : -1;
    if (!isnan(a) && a != b)
        return a < b ? 1 : -1;
    return (x > y) - (x < y);
}

static int by_client(const void *a, const void *b)
{
    const struct top_client *x = a, *y = b;

    return compare_keys(client_key(x), client_key(y), (double)x->info->pid, (double)y->info->pid);
}

static int by_op(const void *a, const void *b)
{
    const struct top_op *x = a, *y = b;
    bool p99 = order == TOP_BY_P99;

    return compare_keys(p99 ? x->row->total_us.p99 : x->runs_s, p99 ? y->row->total_us.p99 : y->runs_s,
                        -(double)x->row->count, -(double)y->row->count);
}

void top_sort(struct top_view *v, enum top_sort by)
{
    order = by;
    qsort(v->clients, v->n_clients, sizeof(*v->clients), by_client);
    qsort(v->ops, v->n_ops, sizeof(*v->ops), by_op);
}

const char *const top_sort_names[TOP_SORTS + 1] = {
    [TOP_BY_RATE] = "rate", [TOP_BY_DEVICE] = "device",     [TOP_BY_MEMORY] = "memory",
    [TOP_BY_P99] = "p99",   [TOP_BY_INFLIGHT] = "inflight", [TOP_BY_PID] = "pid"};

/* ---- text ---- */

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

/* ---- the command ---- */

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
