/* Shared by the functions that write metrics. Thread: loop. */
#ifndef KOPS_SERVER_OBSERVE_METRICS_H
#define KOPS_SERVER_OBSERVE_METRICS_H

#include <stdint.h>

#include "proto/generated/metrics.h"
#include "server/observe/clients.h"
#include "util/buffer.h"

/* Prometheus' text format, version 0.0.4, written into a buffer. Owned by the caller. Thread: the caller's only.
 *
 *     metrics_head(b, METRIC_requests_total);
 *     metrics_sample(b, METRIC_requests_total, "");
 *     metrics_label(b, "method", "run");
 *     metrics_uint(b, 3);
 *     → kopsd_requests_total{method="run"} 3 */

enum metric {
#define X(id, name, type, help) METRIC_##id,
    KOPS_METRICS(X)
#undef X
        METRIC_COUNT
};

struct metrics_text {
    struct buffer bytes;
    bool labelled; /* the sample under way has a label */
};

/* The lines HELP and TYPE. */
void metrics_head(struct metrics_text *t, enum metric metric);

/* Begins a line: the metric's name with `suffix`. Labels follow, then a value, which ends it. */
void metrics_sample(struct metrics_text *t, enum metric metric, const char *suffix);
/* `value` may be any text: characters that the format cannot escape are replaced. */
void metrics_label(struct metrics_text *t, const char *name, const char *value);
void metrics_label_uint(struct metrics_text *t, const char *name, uint64_t value);
void metrics_uint(struct metrics_text *t, uint64_t value);
void metrics_double(struct metrics_text *t, double value);

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
