/* kopsctl stats */
#include <stdio.h>

#include "base/complain.h"
#include "base/json.h"
#include "base/options.h"
#include "base/table.h"
#include "commands.h"
#include "view/executors.h"
#include "view/stats.h"

static const char usage[] =
    "Usage: kopsctl stats [--op NAME] [--dtype NAME] [--device UUID] [--reset] [--json]\n\n"
    "Prints the daemon's counters, its executors, the timings of every op, shape, dtype and kernel, and\n"
    "the mappings that it holds of its clients' memory. \"exec\" is an execution on its device: the\n"
    "host times all, a GPU those of calls with timing and one in 61 of the others.\n\n"
    "      --op NAME      only this op's rows\n"
    "      --dtype NAME   only this dtype's rows\n"
    "      --device UUID  only this device's rows (an index of `kopsctl info` will do)\n"
    "      --reset        start counting anew afterwards\n"
    "      --json         print JSON\n";

static void counters_json(const char *key, const struct kops_counter *const *counters)
{
    json_begin(key, '{');
    for (; *counters; counters++)
        json_uint((*counters)->name, (*counters)->value);
    json_end('}');
}

static void print_json(const struct kops_stats *s)
{
    json_begin(NULL, '{');
    json_number("uptime_s", s->uptime_s);
    counters_json("counters", s->counters);
    counters_json("kernels", s->kernels);
    executors_json(s);
    json_begin("ops", '[');
    for (const struct kops_stats_row *const *row = s->rows; *row; row++) {
        json_begin(NULL, '{');
        stats_row_json(*row);
        json_end('}');
    }
    json_end(']');
    json_begin("mappings", '[');
    for (const struct kops_mapping *const *m = s->mappings; *m; m++) {
        json_begin(NULL, '{');
        json_text("kind", (*m)->kind);
        if ((*m)->device)
            json_text("device", (*m)->device);
        json_uint("size", (*m)->size);
        json_bool("open", (*m)->open);
        json_uint("users", (*m)->users);
        json_ints("pids", (*m)->pids, (*m)->n_pids);
        json_number("idle_s", (*m)->idle_s);
        json_end('}');
    }
    json_end(']');
    json_end('}');
}

static void rows_text(const struct kops_stats *s)
{
    struct table t;

    table_init(&t, "lllllrrrrrrr",
               (const char *const[]){"op", "shapes", "dtype", "variant", "device", "count", "errors", "queue p99 us",
                                     "exec p50 us", "p99", "total p50 us", "p99"});
    for (const struct kops_stats_row *const *row = s->rows; *row; row++) {
        char shapes[TABLE_CELL];

        stats_shapes(*row, shapes, sizeof(shapes));
        table_cell(&t, "%s", (*row)->op);
        table_cell(&t, "%s", shapes);
        table_cell(&t, "%s", (*row)->dtype);
        table_cell(&t, "%s", (*row)->variant);
        table_cell(&t, "%.12s", (*row)->device);
        table_cell(&t, "%llu", (unsigned long long)(*row)->count);
        table_cell(&t, "%llu", (unsigned long long)(*row)->errors);
        table_us(&t, (*row)->queue_us.p99);
        table_us(&t, (*row)->exec_us.p50);
        table_us(&t, (*row)->exec_us.p99);
        table_us(&t, (*row)->total_us.p50);
        table_us(&t, (*row)->total_us.p99);
    }
    table_print(&t);
}

static void mappings_text(const struct kops_stats *s)
{
    struct table t;

    table_init(&t, "llrlrrl", (const char *const[]){"mapping", "device", "bytes", "state", "users", "idle s", "pids"});
    for (const struct kops_mapping *const *m = s->mappings; *m; m++) {
        char pids[TABLE_CELL] = "";
        size_t n = 0;

        for (size_t i = 0; i < (*m)->n_pids && n < sizeof(pids); i++)
            n += (size_t)snprintf(pids + n, sizeof(pids) - n, "%s%lld", i ? " " : "", (long long)(*m)->pids[i]);
        table_cell(&t, "%s", (*m)->kind);
        table_cell(&t, "%.12s", (*m)->device ? (*m)->device : "-");
        table_cell(&t, "%llu", (unsigned long long)(*m)->size);
        table_cell(&t, "%s", (*m)->open ? "open" : "closed");
        table_cell(&t, "%llu", (unsigned long long)(*m)->users);
        table_cell(&t, "%.1f", (*m)->idle_s);
        table_cell(&t, "%s", pids);
    }
    table_print(&t);
}

static void counters_text(const char *title, const struct kops_counter *const *counters)
{
    for (const struct kops_counter *const *c = counters; *c; c++)
        printf("%s%s %llu%s", c == counters ? title : " ", (*c)->name, (unsigned long long)(*c)->value,
               c[1] ? "," : "\n");
}

static void print_text(const struct kops_stats *s)
{
    printf("up %.0f s\n", s->uptime_s);
    counters_text("", s->counters);
    counters_text("your own kernels: ", s->kernels);
    executors_text(s);
    if (*s->rows) {
        printf("\n");
        rows_text(s);
    }
    if (*s->mappings) {
        printf("\n");
        mappings_text(s);
    }
}

enum ctl_exit ctl_stats(struct ctl *ctl, int argc, char **argv)
{
    static const struct option options[] = {{"op", required_argument, NULL, 'o'},
                                            {"dtype", required_argument, NULL, 'd'},
                                            {"device", required_argument, NULL, 'D'},
                                            {"reset", no_argument, NULL, 'r'},
                                            CTL_COMMON_OPTIONS};
    struct kops_stats_filter filter = {0};
    struct kops_stats *stats;
    struct kops_error error;
    enum ctl_exit status;
    int option, end;

    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'o')
            filter.op = optarg;
        else if (option == 'd')
            filter.dtype = optarg;
        else if (option == 'D')
            filter.device = optarg;
        else if (option == 'r')
            filter.reset = true;
        else if ((end = ctl_common(ctl, option, usage)) >= 0)
            return (enum ctl_exit)end;
    }
    if (optind < argc)
        return ctl_usage("stats takes no `%s`", argv[optind]);
    status = ctl_connect(ctl);
    if (status)
        return status;
    if (kops_stats_get(ctl->client, &filter, &stats, &error))
        return ctl_failed("stats", &error);
    if (ctl->json)
        print_json(stats);
    else
        print_text(stats);
    kops_stats_free(stats);
    return CTL_OK;
}
