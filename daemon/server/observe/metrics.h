/* Shared by the functions that write metrics. Thread: loop. */
#ifndef KOPS_SERVER_OBSERVE_METRICS_H
#define KOPS_SERVER_OBSERVE_METRICS_H

#include "server/observe/clients.h"
#include "server/observe/metrics_text.h"

struct metrics {
    struct metrics_text text;
    const struct connection *viewer;
    struct server *s;
};

/* A metric with one sample, without labels. */
static inline void metrics_one(struct metrics *m, enum metric metric, uint64_t value)
{
    metrics_sample(&m->text, metric, "");
    metrics_uint(&m->text, value);
}

static inline void metrics_one_double(struct metrics *m, enum metric metric, double value)
{
    metrics_sample(&m->text, metric, "");
    metrics_double(&m->text, value);
}

/* The function that writes a metric. */
#define METRIC(id)                                                                                                     \
    void metric_##id(struct metrics *m);                                                                               \
    void metric_##id(struct metrics *m)

/* A counter or plain number. */
#define METRIC_VALUE(id, value)                                                                                        \
    METRIC(id)                                                                                                         \
    {                                                                                                                  \
        metrics_one(m, METRIC_##id, (value));                                                                          \
    }

#endif
