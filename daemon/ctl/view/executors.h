/* The daemon's executors, for `info`, `stats` and `top`. */
#ifndef KOPS_CTL_EXECUTORS_H
#define KOPS_CTL_EXECUTORS_H

#include <stdio.h>

#include <kops/kops.h>

/* A line of counts and the table, on stdout; nothing where the daemon never had executors. */
void executors_text(const struct kops_stats *s);

/* A table, a row for each; nothing where there is none. `shares` of the GPU's time, one for each; NULL: those since
 * their start. */
void executors_print(const struct kops_executor *const *list, const double *shares, FILE *to, size_t max_rows);

/* Members of an open JSON object: those of one executor, and the counts. */
void executor_json(const struct kops_executor *x);
void executor_counts_json(const struct kops_stats *s);
/* The members `executors` and `executor_counts`. */
void executors_json(const struct kops_stats *s);

#endif
