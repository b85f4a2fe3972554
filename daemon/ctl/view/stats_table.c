#include "stats_table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/table.h"
#include "base/text.h"
#include "stats.h"

static const struct {
    const char *name, *title;
} columns[STATS_COLUMNS] = {
    [STATS_OP] = {"op", "op"},
    [STATS_SHAPES] = {"shapes", "shapes"},
    [STATS_DTYPE] = {"dtype", "dtype"},
    [STATS_VARIANT] = {"variant", "variant"},
    [STATS_DEVICE] = {"device", "device"},
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

/* A line of the table: one row, or a group of rows. */
struct line {
    const struct kops_stats_row *row; /* the first one */
    size_t place;                     /* among all lines, in the daemon's order */
    size_t n_rows;
    uint64_t calls, errors;
    /* Of the rows with a measured execution. NAN where one of them does not have it. */
    double timed_calls, total_us, bytes, operations;
    double numbers[STATS_COLUMNS]; /* NAN: none */
};

struct lines {
    struct line *at;
    size_t n;
};

bool stats_column_find(const char *name, size_t length, bool keys_only, enum stats_column *ret)
{
    for (unsigned i = 0; i < (keys_only ? STATS_KEYS : STATS_COLUMNS); i++)
        if (strlen(columns[i].name) == length && !memcmp(columns[i].name, name, length)) {
            *ret = (enum stats_column)i;
            return true;
        }
    return false;
}

bool stats_table_has(const struct stats_table *t, enum stats_column column)
{
    return column >= STATS_KEYS || !t->by || t->by & 1U << column;
}

/* ---- keys ---- */

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

static int compare_key(enum stats_column key, const struct kops_stats_row *a, const struct kops_stats_row *b)
{
    switch (key) {
    case STATS_OP:
        return strcmp(a->op, b->op);
    case STATS_SHAPES:
        return compare_shapes(a, b);
    case STATS_DTYPE:
        return strcmp(a->dtype, b->dtype);
    case STATS_VARIANT:
        return strcmp(a->variant, b->variant);
    case STATS_DEVICE:
        return strcmp(a->device, b->device);
    default: /* STATS_USER */
        return (a->uid > b->uid) - (a->uid < b->uid);
    }
}

/* ---- lines ---- */

static struct line *line_of(struct lines *lines, unsigned by, const struct kops_stats_row *row)
{
    for (size_t i = 0; by && i < lines->n; i++) {
        bool same = true;

        for (unsigned key = 0; same && key < STATS_KEYS; key++)
            same = !(by & 1U << key) || compare_key((enum stats_column)key, lines->at[i].row, row) == 0;
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
    line->calls += row->count;
    line->errors += row->errors;
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

    numbers[STATS_CALLS] = (double)line->calls;
    numbers[STATS_ERRORS] = (double)line->errors;
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

static enum stats_column order; /* of the comparison; qsort passes none on */

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

/* ---- text ---- */

static void text_cell(struct table *t, const char *text)
{
    char clean[TABLE_CELL];

    table_cell(t, "%s", *text ? text_clean(text, clean, sizeof(clean)) : "-");
}

static void key_cell(struct table *t, enum stats_column key, const struct kops_stats_row *row)
{
    char text[TABLE_CELL] = "";

    switch (key) {
    case STATS_OP:
        text_cell(t, row->op);
        break;
    case STATS_SHAPES:
        stats_shapes(row, text, sizeof(text));
        text_cell(t, text);
        break;
    case STATS_DTYPE:
        text_cell(t, row->dtype);
        break;
    case STATS_VARIANT:
        text_cell(t, row->variant);
        break;
    case STATS_DEVICE:
        snprintf(text, sizeof(text), "%.12s", row->device);
        text_cell(t, text);
        break;
    default: /* STATS_USER */
        text_cell(t, row->uid < 0 ? "" : text_owner(row->uid, row->identity, text, sizeof(text)));
        break;
    }
}

static void number_cell(struct table *t, enum stats_column column, const struct line *line)
{
    if (column == STATS_CALLS)
        table_cell(t, "%llu", (unsigned long long)line->calls);
    else if (column == STATS_ERRORS)
        table_cell(t, "%llu", (unsigned long long)line->errors);
    else if (column == STATS_SHARE && !isnan(line->numbers[column]))
        table_cell(t, "%.1f", line->numbers[column]);
    else
        table_us(t, line->numbers[column]); /* times and rates have the same digits */
}

static void print_lines(const struct lines *lines, const bool shown[STATS_COLUMNS], size_t limit)
{
    const char *titles[STATS_COLUMNS];
    char align[STATS_COLUMNS + 1];
    unsigned n = 0;
    struct table t;

    for (unsigned i = 0; i < STATS_COLUMNS; i++)
        if (shown[i]) {
            titles[n] = columns[i].title;
            align[n++] = i < STATS_KEYS ? 'l' : 'r';
        }
    align[n] = 0;
    table_init(&t, align, titles);
    for (size_t i = 0; i < lines->n && i < limit; i++)
        for (unsigned c = 0; c < STATS_COLUMNS; c++) {
            if (shown[c] && c < STATS_KEYS)
                key_cell(&t, (enum stats_column)c, lines->at[i].row);
            else if (shown[c])
                number_cell(&t, (enum stats_column)c, &lines->at[i]);
        }
    table_print(&t);
    if (lines->n > limit)
        printf("and %zu more\n", lines->n - limit);
}

bool stats_table_print(const struct stats_table *t, const struct kops_stats_row *const *rows)
{
    bool shown[STATS_COLUMNS], users = false;
    struct lines lines = {.n = 0};
    double all_us = 0;
    size_t n = 0;

    for (; rows[n]; n++)
        users = users || rows[n]->uid != rows[0]->uid;
    if (!n)
        return true;
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
        shown[i] = stats_table_has(t, (enum stats_column)i) && (i != STATS_USER || t->by || users);
    print_lines(&lines, shown, t->limit);
    free(lines.at);
    return true;
}
