/* Rows of the daemon's timings, for `stats` and `top`. */
#ifndef KOPS_CTL_STATS_H
#define KOPS_CTL_STATS_H

#include <stddef.h>

#include <kops/kops.h>

/* Members of an open JSON object. */
void stats_row_json(const struct kops_stats_row *row);

/* "8x8,8x8"; cut to fit. */
void stats_shapes(const struct kops_stats_row *row, char *into, size_t size);

#endif
