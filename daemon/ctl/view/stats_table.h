/* The table of timings of `stats`: its columns, order and groups. The rules are in docs/stats.md; the Python client has
 * them in _base/stats.py, and tests/vectors/stats_table.json holds both to them. */
#ifndef KOPS_CTL_STATS_TABLE_H
#define KOPS_CTL_STATS_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include <kops/kops.h>

enum stats_column {
    /* Keys: the columns that rows are grouped by. */
    STATS_OP,
    STATS_SHAPES,
    STATS_DTYPE,
    STATS_VARIANT,
    STATS_DEVICE,
    STATS_USER,
    STATS_KEYS,
    /* Numbers. */
    STATS_CALLS = STATS_KEYS,
    STATS_ERRORS,
    STATS_TOTAL,
    STATS_SHARE,
    STATS_MEAN,
    STATS_P50,
    STATS_P99,
    STATS_GB_S,
    STATS_GFLOP_S,
    STATS_QUEUE_P99,
    STATS_TOTAL_P99,
    STATS_COLUMNS
};

struct stats_table {
    unsigned by; /* keys to group by, a bit each; 0: a line for each row */
    enum stats_column sort;
    size_t limit; /* most lines */
};

/* By the name that --sort and --by take. Returns false when there is none, or it is no key but `keys_only`. */
bool stats_column_find(const char *name, size_t length, bool keys_only, enum stats_column *ret);

/* Whether the table can be sorted by the column: not by a key that its groups do not have. */
bool stats_table_has(const struct stats_table *t, enum stats_column column);

/* Prints a NULL-terminated list of rows; nothing where there are none. Returns false when there is no memory. */
bool stats_table_print(const struct stats_table *t, const struct kops_stats_row *const *rows);

#endif
