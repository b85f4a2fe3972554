/* kopsctl stats, kopsctl clients. docs/stats.md has the rules of the table of stats; the Python client has them in
 * _base/stats.py, and tests/vectors/stats_table.json holds both to them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/output.h"
#include "commands.h"
#include "view/rows.h"

static const char stats_usage[] =
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

/* ---- the table of timings: its columns, order and groups ---- */

/* The columns: keys, by which rows are grouped, then numbers. */
enum { STATS_OP, STATS_SHAPES, STATS_DTYPE, STATS_VARIANT, STATS_DEVICE, STATS_USER, STATS_KEYS };
enum { STATS_CALLS = STATS_KEYS, STATS_ERRORS, STATS_TOTAL, STATS_SHARE, STATS_MEAN, STATS_P50, STATS_P99 };
enum { STATS_GB_S = STATS_P99 + 1, STATS_GFLOP_S, STATS_QUEUE_P99, STATS_TOTAL_P99, STATS_COLUMNS };

static const struct {
    const char *name, *title;
    size_t at; /* for a text key: its place in a row */
} columns[STATS_COLUMNS] = {
    [STATS_OP] = {"op", "op", offsetof(struct kops_stats_row, op)},
    [STATS_SHAPES] = {"shapes", "shapes"},
    [STATS_DTYPE] = {"dtype", "dtype", offsetof(struct kops_stats_row, dtype)},
    [STATS_VARIANT] = {"variant", "variant", offsetof(struct kops_stats_row, variant)},
    [STATS_DEVICE] = {"device", "device", offsetof(struct kops_stats_row, device)},
    [STATS_USER] = {"user", "user"},
    [STATS_CALLS] = {"calls", "calls"},
    [STATS_ERRORS] = {"errors", "errors"},
    [STATS_TOTAL] = {"total", "total ms"},
    [STATS_SHARE] = {"share", "share %"},
    [STATS_MEAN] = {"mean", "mean us"},
    [STATS_P50] = {"p50", "p50 us"},
    [STATS_P99] = {"p99", "p99 us"},
    [STATS_GB_S] = {"gb_s", "GB/s"},
    [STATS_GFLOP_S] = {"gflop_s", "GFLOP/s"},
    [STATS_QUEUE_P99] = {"queue_p99", "queue p99 us"},
    [STATS_TOTAL_P99] = {"total_p99", "total p99 us"},
};

struct stats_table {
    unsigned by; /* keys to group by, a bit each; 0: a line for each row */
    unsigned sort;
    size_t limit; /* most lines */
};

/* A line of the table: one row, or a group of rows. */
struct line {
    const struct kops_stats_row *row; /* the first one */
    size_t place;                     /* among all lines, in the daemon's order */
    size_t n_rows;
    /* Sums over the rows with a measured execution; NAN where a row does not have the amount. */
    double timed_calls, total_us, bytes, operations;
    double numbers[STATS_COLUMNS]; /* NAN: none */
};

struct lines {
    struct line *at;
    size_t n;
};

/* By the name that --sort and --by take. Returns false when there is none, or it is no key but `keys_only`. */
static bool column_find(const char *name, size_t length, bool keys_only, unsigned *ret)
{
    for (unsigned i = 0; i < (keys_only ? STATS_KEYS : STATS_COLUMNS); i++)
        if (strlen(columns[i].name) == length && !memcmp(columns[i].name, name, length)) {
            *ret = i;
            return true;
        }
    return false;
}

/* Whether the table can be sorted by the column: not by a key that its groups do not have. */
static bool has_column(const struct stats_table *t, unsigned column)
{
    return column >= STATS_KEYS || !t->by || t->by & 1U << column;
}

/* Compares lists of lists of numbers. The first number that differs decides; a list that ends before is the lesser. */
static int compare_shapes(const struct kops_stats_row *a, const struct kops_stats_row *b)
{
    for (size_t i = 0; i < a->n_shapes && i < b->n_shapes; i++) {
        const struct kops_shape *x = &a->shapes[i], *y = &b->shapes[i];

        for (unsigned d = 0; d < x->rank && d < y->rank; d++)
            if (x->dims[d] != y->dims[d])
                return x->dims[d] < y->dims[d] ? -1 : 1;
        if (x->rank != y->rank)
            return x->rank < y->rank ? -1 : 1;
    }
    return (a->n_shapes > b->n_shapes) - (a->n_shapes < b->n_shapes);
}

/* A key that is a text. */
static const char *text_key(unsigned key, const struct kops_stats_row *row)
{
    return *(const char *const *)((const char *)row + columns[key].at);
}

static int compare_key(unsigned key, const struct kops_stats_row *a, const struct kops_stats_row *b)
{
    if (key == STATS_SHAPES)
        return compare_shapes(a, b);
    if (key == STATS_USER)
        return (a->uid > b->uid) - (a->uid < b->uid);
    return strcmp(text_key(key, a), text_key(key, b));
}

static struct line *line_of(struct lines *lines, unsigned by, const struct kops_stats_row *row)
{
    for (size_t i = 0; by && i < lines->n; i++) {
        bool same = true;

        for (unsigned key = 0; same && key < STATS_KEYS; key++)
            same = !(by & 1U << key) || compare_key(key, lines->at[i].row, row) == 0;
        if (same)
            return &lines->at[i];
    }
    lines->at[lines->n] = (struct line){.row = row, .place = lines->n};
    return &lines->at[lines->n++];
}

static void add_row(struct line *line, const struct kops_stats_row *row)
{
    const double calls = (double)row->count;

    line->n_rows++;
    line->numbers[STATS_CALLS] += calls;
    line->numbers[STATS_ERRORS] += (double)row->errors;
    if (isnan(row->exec_us.mean))
        return;
    line->timed_calls += calls;
    line->total_us += calls * row->exec_us.mean;
    line->bytes += row->bytes < 0 ? (double)NAN : calls * (double)row->bytes;
    line->operations += row->operations < 0 ? (double)NAN : calls * (double)row->operations;
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : (double)NAN;
}

/* `all_us`: the total of every line. */
static void finish(struct line *line, double all_us)
{
    const struct kops_stats_row *single = line->n_rows == 1 ? line->row : NULL; /* groups have no percentiles */
    double *numbers = line->numbers;

    numbers[STATS_TOTAL] = line->timed_calls > 0 ? line->total_us / 1e3 : (double)NAN;
    numbers[STATS_SHARE] = 100 * ratio(line->timed_calls > 0 ? line->total_us : (double)NAN, all_us);
    numbers[STATS_MEAN] = ratio(line->total_us, line->timed_calls);
    numbers[STATS_P50] = single ? single->exec_us.p50 : (double)NAN;
    numbers[STATS_P99] = single ? single->exec_us.p99 : (double)NAN;
    numbers[STATS_GB_S] = ratio(line->bytes, line->total_us) / 1e3;
    numbers[STATS_GFLOP_S] = ratio(line->operations, line->total_us) / 1e3;
    numbers[STATS_QUEUE_P99] = single ? single->queue_us.p99 : (double)NAN;
    numbers[STATS_TOTAL_P99] = single ? single->total_us.p99 : (double)NAN;
}

static unsigned order; /* order for by_column(): qsort() passes no context */

static int by_column(const void *x, const void *y)
{
    const struct line *a = x, *b = y;
    const double n = a->numbers[order], m = b->numbers[order];
    int difference;

    if (order < STATS_KEYS)
        difference = compare_key(order, a->row, b->row);
    else if (isnan(n) || isnan(m))
        difference = isnan(n) - isnan(m);
    else
        difference = (n < m) - (n > m);
    return difference ? difference : (a->place > b->place) - (a->place < b->place);
}

static const char *cell_text(unsigned column, const struct line *line)
{
    const struct kops_stats_row *row = line->row;
    const double number = line->numbers[column];
    const char *key;

    if (column < STATS_KEYS) {
        key = column == STATS_SHAPES   ? stats_shapes(row)
              : column == STATS_DEVICE ? text_format("%.12s", row->device)
              : column != STATS_USER   ? text_key(column, row)
              : row->uid >= 0          ? text_owner(row->uid, row->identity)
                                       : "";
        return *key ? text_clean(key) : "-";
    }
    if (column == STATS_CALLS || column == STATS_ERRORS)
        return text_format("%.0f", number);
    if (column == STATS_SHARE && !isnan(number))
        return text_format("%.1f", number);
    return text_us(number); /* times and rates have the same digits */
}

static void print_lines(const struct lines *lines, const bool shown[STATS_COLUMNS], size_t limit)
{
    char titles[512];
    size_t n = 0;
    struct table t;

    for (unsigned i = 0; i < STATS_COLUMNS; i++)
        if (shown[i])
            n += (size_t)snprintf(titles + n, sizeof(titles) - n, "%s%s%s", n ? "\t" : "", i < STATS_KEYS ? "" : ">",
                                  columns[i].title);
    table_init(&t, titles);
    for (size_t i = 0; i < lines->n && i < limit; i++)
        for (unsigned c = 0; c < STATS_COLUMNS; c++)
            if (shown[c])
                table_cell(&t, cell_text(c, &lines->at[i]));
    table_print(&t);
    if (lines->n > limit)
        printf("and %zu more\n", lines->n - limit);
}

/* Prints a NULL-terminated list of rows. Returns false when there is no memory. */
static bool table_of_rows(const struct stats_table *t, const struct kops_stats_row *const *rows)
{
    bool shown[STATS_COLUMNS], users = false;
    struct lines lines = {.n = 0};
    double all_us = 0;
    size_t n = 0;

    for (; rows[n]; n++)
        users = users || rows[n]->uid != rows[0]->uid;
    lines.at = calloc(n, sizeof(*lines.at));
    if (!lines.at)
        return false;
    for (size_t i = 0; i < n; i++)
        add_row(line_of(&lines, t->by, rows[i]), rows[i]);
    for (size_t i = 0; i < lines.n; i++)
        all_us += lines.at[i].total_us;
    for (size_t i = 0; i < lines.n; i++)
        finish(&lines.at[i], all_us);
    order = t->sort;
    qsort(lines.at, lines.n, sizeof(*lines.at), by_column);
    for (unsigned i = 0; i < STATS_COLUMNS; i++)
        shown[i] = has_column(t, i) && (i != STATS_USER || t->by || users);
    print_lines(&lines, shown, t->limit);
    free(lines.at);
    return true;
}

/* ---- all of it ---- */

#define F(member) JSON_FIELD(struct kops_mapping, member)
static const struct json_field mapping_fields[] = {
    F(kind), JSON_SOME(struct kops_mapping, device), F(size), F(open), F(users), JSON_END};

static void mapping_json(const void *mapping)
{
    const struct kops_mapping *m = mapping;

    json_fields(mapping_fields, m);
    json_ints("pids", m->pids, m->n_pids);
    json_number("idle_s", m->idle_s);
}

static void mappings_text(const struct kops_stats *s)
{
    struct table t;

    table_init(&t, "mapping\tdevice\t>bytes\tstate\t>users\t>idle s\tpids");
    for (const struct kops_mapping *const *p = s->mappings; *p; p++) {
        const struct kops_mapping *m = *p;
        const char *pids = "";

        for (size_t i = 0; i < m->n_pids; i++)
            pids = text_format("%s%s%lld", pids, i ? " " : "", (long long)m->pids[i]);
        table_row(&t, "%s\t%.12s\t%llu\t%s\t%llu\t%.1f\t%s", m->kind, m->device ? m->device : "-",
                  (unsigned long long)m->size, m->open ? "open" : "closed", (unsigned long long)m->users, m->idle_s,
                  pids);
    }
    table_print(&t);
}

static enum ctl_exit print_text(const struct kops_stats *s, const struct stats_table *table)
{
    printf("up %.0f s\n", s->uptime_s);
    counters_text("", s->counters);
    counters_text("your own kernels: ", s->kernels);
    executors_text(s);
    if (*s->rows) {
        printf("\n");
        if (!table_of_rows(table, s->rows))
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
    unsigned column;

    *ret = 0;
    for (const char *end = text;; text = end + 1) {
        end = text + strcspn(text, ",");
        if (!column_find(text, (size_t)(end - text), true, &column))
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
    if (sort && !column_find(sort, strlen(sort), false, &ret->sort))
        return ctl_usage("the table has no column `%s`; `kopsctl stats --help` lists them", sort);
    if (!has_column(ret, ret->sort))
        return ctl_usage("--sort %s is not possible with --by %s: the groups have no such column", sort, by);
    if (limit && !ctl_parse_uint(limit, 0, SIZE_MAX, &lines))
        return ctl_usage("--limit takes a number of lines, not `%s`", limit);
    ret->limit = (size_t)lines;
    return CTL_OK;
}

enum ctl_exit ctl_stats(struct ctl *ctl, int argc, char **argv)
{
    const char *sort = NULL, *by = NULL, *limit = NULL;
    struct kops_stats_filter filter = {0};
    const struct ctl_option options[] = {{"--op", 0, OPTION_TEXT, &filter.op},
                                         {"--dtype", 0, OPTION_TEXT, &filter.dtype},
                                         {"--device", 0, OPTION_TEXT, &filter.device},
                                         {"--sort", 0, OPTION_TEXT, &sort},
                                         {"--by", 0, OPTION_TEXT, &by},
                                         {"--limit", 0, OPTION_TEXT, &limit},
                                         {"--reset", 0, OPTION_FLAG, &filter.reset},
                                         {0}};
    struct stats_table table;
    struct kops_stats *stats;
    enum ctl_exit status;

    if (!ctl_parse(ctl, argc, argv, stats_usage, options, 0, &status))
        return status;
    status = parse_table(sort, by, limit, ctl->json, &table);
    if (!status)
        status = ctl_connect(ctl);
    if (status)
        return status;
    if (kops_stats_get(ctl->client, &filter, &stats, &ctl->error))
        return ctl_failed("stats", &ctl->error);
    if (ctl->json)
        JSON_MAP(NULL, json_number("uptime_s", stats->uptime_s), counters_map_json("counters", stats->counters),
                 counters_map_json("kernels", stats->kernels),
                 json_list("executors", executor_fields, stats->executors),
                 counters_map_json("executor_counts", stats->executor_counts),
                 json_each("ops", stats->rows, stats_row_json), json_each("mappings", stats->mappings, mapping_json));
    else
        status = print_text(stats, &table);
    kops_stats_free(stats);
    return status;
}

/* ---- kopsctl clients ---- */

static const char clients_usage[] =
    "Usage: kopsctl clients [--users] [--json]\n\n"
    "Lists the daemon's connections with their memory, requests and latency. Administrators (by default root and the\n"
    "daemon's own user) see all connections, others their own. \"executor\" is the process that the client's own\n"
    "kernels run in. A \"user\" in brackets is an identity: the name of the socket that the client connected to.\n\n"
    "      --users   add a table of users: the use of all connections of a user together, and the limits\n"
    "      --json    print JSON: clients, users and devices\n";

static void clients_text(const struct kops_clients *s)
{
    struct table t;

    table_init(&t, ">pid\tuser\tprocess\t>for s\t>requests\t>here\t>errors\t>in flight\t>queued\t>buffers\t>mapped\t"
                   ">allocated\t>p50 us\t>p99 us\t>executor\tstate\tcalls itself");
    for (const struct kops_client_info *const *p = s->clients; *p; p++) {
        const struct kops_client_info *c = *p;

        table_row(&t, "%lld\t%s\t%s\t%.0f\t%llu\t%llu\t%llu\t%llu\t%llu\t%llu\t%s\t%s\t%s\t%s\t%s\t%s\t%s",
                  (long long)c->pid, text_owner(c->uid, c->identity), text_clean(*c->comm ? c->comm : "-"),
                  c->connected_s, (unsigned long long)c->requests, (unsigned long long)c->here,
                  (unsigned long long)c->errors, (unsigned long long)c->inflight, (unsigned long long)c->queued,
                  (unsigned long long)c->buffers, text_bytes(c->mapped_bytes), text_bytes(c->allocated_bytes),
                  text_us(c->latency.total.p50), text_us(c->latency.total.p99),
                  c->executor ? text_format("%lld", (long long)c->executor) : "-", client_state(c),
                  text_clean(c->client));
    }
    table_print(&t);
}

/* "3 of 1024"; where there is no limit, "3". */
static const char *of_limit(uint64_t n, uint64_t limit)
{
    const char *text = text_format("%llu", (unsigned long long)n);

    return limit == KOPS_NO_LIMIT ? text : text_format("%s of %llu", text, (unsigned long long)limit);
}

static const char *bytes_of_limit(uint64_t n, uint64_t limit)
{
    return limit == KOPS_NO_LIMIT ? text_bytes(n) : text_format("%s of %s", text_bytes(n), text_bytes(limit));
}

static void users_text(const struct kops_clients *s)
{
    struct table t;

    table_init(&t, "user\t>connections\t>buffers\t>mappings\t>mapped\t>allocated\t>host memory\t>programs\t>waiting\t"
                   ">in flight\t>descriptors\t>kernels\t>requests\t>refused\t>device s");
    for (const struct kops_user_info *const *p = s->users; *p; p++) {
        const struct kops_user_info *u = *p;
        const struct kops_user_limits *l = &u->limits;

#define N(member)     of_limit(u->member, l->member)
#define BYTES(member) bytes_of_limit(u->member, l->member)
        table_row(&t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%llu\t%llu\t%s", text_owner(u->uid, u->identity),
                  N(connections), N(buffers), N(mappings), BYTES(mapped_bytes), BYTES(allocated_bytes),
                  BYTES(host_bytes), BYTES(program_bytes), BYTES(waiting_bytes), N(inflight), N(fds),
                  BYTES(kernel_bytes), (unsigned long long)u->requests, (unsigned long long)u->refused,
                  isnan(u->device_us) ? "-" : text_format("%.3f", u->device_us * 1e-6));
#undef N
#undef BYTES
    }
    printf("\n");
    table_print(&t);
}

enum ctl_exit ctl_clients(struct ctl *ctl, int argc, char **argv)
{
    bool users = false;
    const struct ctl_option options[] = {{"--users", 'u', OPTION_FLAG, &users}, {0}};
    struct kops_clients *clients;
    enum ctl_exit status;

    if (!ctl_begin(ctl, argc, argv, clients_usage, options, 0, &status))
        return status;
    if (kops_clients(ctl->client, &clients, &ctl->error))
        return ctl_failed("clients", &ctl->error);
    if (ctl->json) {
        JSON_MAP(NULL, json_text("state", clients->state), json_number("uptime_s", clients->uptime_s),
                 json_list("clients", client_fields, clients->clients), json_list("users", user_fields, clients->users),
                 json_each("devices", clients->devices, device_json));
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
