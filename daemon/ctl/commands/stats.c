/* kopsctl stats */
#include <stdio.h>
#include <string.h>

#include "base/complain.h"
#include "base/json.h"
#include "base/options.h"
#include "base/table.h"
#include "commands.h"
#include "view/executors.h"
#include "view/stats.h"
#include "view/stats_table.h"

static const char usage[] =
    "Usage: kopsctl stats [--op NAME] [--dtype NAME] [--device UUID] [--sort COLUMN] [--by COLUMN,...]\n"
    "                     [--limit N] [--reset] [--json]\n\n"
    "Prints the daemon's counters, its executors, a table of the timings of every op, shape, dtype and kernel,\n"
    "and the mappings that it holds of its clients' memory. In the table, total, mean, p50 and p99 are of executions\n"
    "on their device: the host times all, a GPU those of calls with timing and one in 61 of the others. The total is\n"
    "the mean times the calls, the share is of all lines. A group of several rows has no percentiles.\n\n"
    "      --op NAME      only this op's rows\n"
    "      --dtype NAME   only this dtype's rows\n"
    "      --device UUID  only this device's rows (an index of `kopsctl info` will do)\n"
    "      --sort COLUMN  order of the table: op, shapes, dtype, variant, device, user, calls, errors, total (the\n"
    "                     default), share, mean, p50, p99, gb_s, gflop_s, queue_p99 or total_p99\n"
    "      --by COLUMNS   a line for each group with the same op, shapes, dtype, variant, device or user,\n"
    "                     for example op,dtype\n"
    "      --limit N      at most N lines of the table\n"
    "      --reset        start counting anew afterwards\n"
    "      --json         print JSON: every row as the daemon has it\n";

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

static enum ctl_exit print_text(const struct kops_stats *s, const struct stats_table *table)
{
    printf("up %.0f s\n", s->uptime_s);
    counters_text("", s->counters);
    counters_text("your own kernels: ", s->kernels);
    executors_text(s);
    if (*s->rows) {
        printf("\n");
        if (!stats_table_print(table, s->rows))
            return ctl_complain("no_memory", "there is no memory for the table");
    }
    if (*s->mappings) {
        printf("\n");
        mappings_text(s);
    }
    return CTL_OK;
}

/* The option's list, such as "op,dtype". */
static enum ctl_exit parse_by(const char *text, unsigned *ret)
{
    enum stats_column column;

    *ret = 0;
    for (const char *end = text;; text = end + 1) {
        end = text + strcspn(text, ",");
        if (!stats_column_find(text, (size_t)(end - text), true, &column))
            return ctl_usage(
                "--by takes op, shapes, dtype, variant, device and user, with commas between them, not `%.*s`",
                (int)(end - text), text);
        *ret |= 1U << column;
        if (!*end)
            return CTL_OK;
    }
}

static enum ctl_exit parse_table(const char *sort, const char *by, const char *limit, bool json,
                                 struct stats_table *ret)
{
    uint64_t lines = SIZE_MAX;
    enum ctl_exit status;

    *ret = (struct stats_table){.sort = STATS_TOTAL};
    if (json && (sort || by || limit))
        return ctl_usage("--sort, --by and --limit are of the table: not with --json");
    status = by ? parse_by(by, &ret->by) : CTL_OK;
    if (status)
        return status;
    if (sort && !stats_column_find(sort, strlen(sort), false, &ret->sort))
        return ctl_usage("the table has no column `%s`; `kopsctl stats --help` lists them", sort);
    if (!stats_table_has(ret, ret->sort))
        return ctl_usage("--sort %s is not possible with --by %s: the groups have no such column", sort, by);
    if (limit && !ctl_parse_uint(limit, 0, SIZE_MAX, &lines))
        return ctl_usage("--limit takes a number of lines, not `%s`", limit);
    ret->limit = (size_t)lines;
    return CTL_OK;
}

enum ctl_exit ctl_stats(struct ctl *ctl, int argc, char **argv)
{
    static const struct option options[] = {
        {"op", required_argument, NULL, 'o'},     {"dtype", required_argument, NULL, 'd'},
        {"device", required_argument, NULL, 'D'}, {"sort", required_argument, NULL, 's'},
        {"by", required_argument, NULL, 'b'},     {"limit", required_argument, NULL, 'l'},
        {"reset", no_argument, NULL, 'r'},        CTL_COMMON_OPTIONS};
    const char *sort = NULL, *by = NULL, *limit = NULL;
    struct kops_stats_filter filter = {0};
    struct stats_table table;
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
        else if (option == 's')
            sort = optarg;
        else if (option == 'b')
            by = optarg;
        else if (option == 'l')
            limit = optarg;
        else if (option == 'r')
            filter.reset = true;
        else if ((end = ctl_common(ctl, option, usage)) >= 0)
            return (enum ctl_exit)end;
    }
    if (optind < argc)
        return ctl_usage("stats takes no `%s`", argv[optind]);
    status = parse_table(sort, by, limit, ctl->json, &table);
    if (!status)
        status = ctl_connect(ctl);
    if (status)
        return status;
    if (kops_stats_get(ctl->client, &filter, &stats, &error))
        return ctl_failed("stats", &error);
    if (ctl->json)
        print_json(stats);
    else
        status = print_text(stats, &table);
    kops_stats_free(stats);
    return status;
}
