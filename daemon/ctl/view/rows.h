/* The JSON and the texts that several commands show: connections, users, devices, executors, timings, and
 * measurements: times, the conditions of the device, the GPU's counters. */
#ifndef KOPS_CTL_ROWS_H
#define KOPS_CTL_ROWS_H

#include <kops/kops.h>
#include <stddef.h>
#include <stdio.h>

#include "base/ctl.h"
#include "base/output.h"

/* ---- times ---- */

/* Returns the time of one execution, on any device. */
double result_kernel_us(const struct kops_result *result);

/* Prints lines on the executions and copies, where there were any. */
void result_print_more(const struct kops_result *result);

/* Writes the timings, with those of the executions; `samples` has room for `room` of them. */
void result_json_timings(const struct kops_result *result, const double *samples, size_t room);

/* ---- conditions ---- */

/* Formats "1980 -> 1590 of 1980 MHz, memory 3201 of 3201 MHz, 36 -> 57 C, 79 -> 692 of 700 W", and a warning where the
 * clocks were kept down, or changed. `before` may equal `after`, for one reading. "" where the daemon is too old to
 * tell. */
const char *conditions_text(const struct kops_conditions *before, const struct kops_conditions *after, char *into,
                            size_t size);

/* Writes the conditions as a map. */
void conditions_json(const char *key, const struct kops_conditions *c);

/* Readings around a measurement; both NULL where there are none, or the daemon cannot tell. */
struct conditions_pair {
    struct kops_conditions *before, *after;
};

/* Reads the device's conditions into *ret (NULL: the default device); NULL where the daemon cannot tell. */
void conditions_read(kops_client *client, const char *device, struct kops_conditions **ret);
void conditions_pair_print(const struct conditions_pair *pair);
void conditions_pair_json(const struct conditions_pair *pair);
void conditions_pair_free(struct conditions_pair *pair);

/* ---- counters ---- */

/* Prints the counters of `what` as lines or JSON, and frees them; or prints the error of `code`. */
enum ctl_exit counters_show(const struct ctl *ctl, const char *what, enum kops_code code, struct kops_counters *c,
                            const struct kops_error *error);

/* The words of --cache, for an enum kops_counter_caches. */
#define COUNTERS_CACHES                                                                                                \
    "is `cold` or `warm`", .words = (const char *[])                                                                   \
    {                                                                                                                  \
        "cold", "warm", NULL                                                                                           \
    }

extern const struct json_field client_fields[], user_fields[], executor_fields[];

/* Write members of an open map. */
void device_json(const void *device_load);
void stats_row_json(const void *stats_row);

/* Writes a map of names and values. */
void counters_map_json(const char *key, const struct kops_counter *const *counters);

/* Prints the title, and names with their values on a line; nothing where there are none. */
void counters_text(const char *title, const struct kops_counter *const *counters);

/* "paused", "busy" or "idle". */
const char *client_state(const struct kops_client_info *c);

/* "8x8,8x8"; cut to fit. */
const char *stats_shapes(const struct kops_stats_row *row);

/* Prints a line of counts and the table of executors, on stdout; nothing where the daemon never had executors. */
void executors_text(const struct kops_stats *s);

/* Prints a table with a row for each executor; nothing where there is none. `shares` of the GPU's time, one for each;
 * NULL: the shares since their start. */
void executors_print(const struct kops_executor *const *list, const double *shares, FILE *to, size_t max_rows);

#endif
