/* Which of CUPTI's metrics tell which counter. */
#ifndef KOPS_CUDA_METRICS_H
#define KOPS_CUDA_METRICS_H

#include "core/counters.h"

enum { METRICS_MAX = (int)COUNTER_COUNT + (int)STALL_COUNT };

struct cuda_metric {
    const char *name;
    double scale; /* what the metric's value is multiplied with */
};

/* The metric of a counter, or, behind COUNTER_COUNT, of a stall. i < METRICS_MAX */
const struct cuda_metric *cuda_metric(unsigned i);

/* Where its value goes. */
double *cuda_metric_place(struct backend_counters *c, unsigned i);

#endif
