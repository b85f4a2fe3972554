/* The JSON and the texts that several commands show: connections, users, devices, executors, timings. */
#ifndef KOPS_CTL_ROWS_H
#define KOPS_CTL_ROWS_H

#include <stdio.h>

#include <kops/kops.h>

#include "base/output.h"

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
