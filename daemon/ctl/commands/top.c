/* kopsctl top: the command, and the views as JSON. top_view.c looks at the daemon, top_screen.c is the live view. */
#include "top.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "commands.h"
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
