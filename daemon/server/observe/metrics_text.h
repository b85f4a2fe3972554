/* Prometheus' text format, version 0.0.4, written into a buffer. Owned by the caller. Thread: the caller's only.
 *
 *     metrics_head(b, METRIC_requests_total);
 *     metrics_sample(b, METRIC_requests_total, "");
 *     metrics_label(b, "method", "run");
 *     metrics_uint(b, 3);
 *     → kopsd_requests_total{method="run"} 3 */
#ifndef KOPS_SERVER_OBSERVE_METRICS_TEXT_H
#define KOPS_SERVER_OBSERVE_METRICS_TEXT_H

#include <stdint.h>

#include "proto/generated/metrics.h"
#include "util/buffer.h"

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

#endif
