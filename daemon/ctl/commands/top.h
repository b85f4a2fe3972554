/* kopsctl top: two looks at the daemon, the rates between them, and their display. */
#ifndef KOPS_CTL_TOP_H
#define KOPS_CTL_TOP_H

#include <stdio.h>

#include "base/ctl.h"

enum top_sort { TOP_BY_RATE, TOP_BY_DEVICE, TOP_BY_MEMORY, TOP_BY_P99, TOP_BY_INFLIGHT, TOP_BY_PID, TOP_SORTS };

/* Rates are a second's; NAN: not known yet. */
struct top_client {
    const struct kops_client_info *info;
    double requests_s, errors_s;
    double here_s;       /* launches in the client's own context, as it reports them about once a second */
    double device_share; /* share of one device's time; 1 is all of it */
};

struct top_op {
    const struct kops_stats_row *row;
    double runs_s, errors_s;
};

struct top_sample {
    struct kops_clients *clients; /* owned; NULL: none */
    struct kops_stats *stats;
};

struct top_view {
    char server[64]; /* name of the daemon in `now` */
    int64_t pid;
    struct top_sample now, before;
    double interval_s; /* time between the samples; NAN: there is only one */
    double requests_s, errors_s, jobs_s;
    uint64_t inflight, queued;
    size_t n_clients, n_ops, n_devices, n_executors;
    struct top_client *clients;
    struct top_op *ops; /* ops that ran in between; all ops where there is only one sample */
    double *device_shares;
    double *executor_shares;
};

/* Looks at the daemon; rates are counted from the last look. On failure the view is as before. */
enum kops_code top_look(struct ctl *ctl, struct top_view *v, struct kops_error *error);

void top_sort(struct top_view *v, enum top_sort by);
void top_free(struct top_view *v);

extern const char *const top_sort_names[TOP_SORTS + 1]; /* NULL-terminated */

/* Print parts of a view as text: two lines and a line for each device; tables of at most `max_rows` rows. */
typedef void top_print(const struct top_view *v, FILE *to, size_t max_rows);
top_print top_print_summary, top_print_executors, top_print_clients, top_print_ops;

/* Shows the live view until the user ends it, or says that this kopsctl was built without it. */
enum ctl_exit top_screen(struct ctl *ctl, double delay_s, enum top_sort by);

#endif
