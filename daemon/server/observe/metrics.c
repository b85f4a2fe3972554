/* The method `metrics`: what proto/metrics.json declares, each metric by a function of its own in
 * metrics_*.c. */
#include "server/observe/metrics.h"
#include "server/observe/report.h"
#include "server/observe/sampling.h"
#include "server/peer/request.h"

enum { TEXT_MAX = 32 * 1024 * 1024 };

typedef void metric_writer(struct metrics *m);
#define X(id, name, type, help) metric_writer metric_##id;
KOPS_METRICS(X)
#undef X

static metric_writer *const writers[METRIC_COUNT] = {
#define X(id, name, type, help) [METRIC_##id] = metric_##id,
    KOPS_METRICS(X)
#undef X
};

void handle_metrics(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    (void)args;
    (void)fds;
    sampling_enqueue(r);
}

/* One metric after the other. */
static bool metrics_next(struct report *report)
{
    struct metrics *m = &report->metrics;

    if (report->next_metric < METRIC_COUNT) {
        metrics_head(&m->text, (enum metric)report->next_metric);
        writers[report->next_metric++](m);
        return false;
    }
    buffer_append(&m->text.bytes, "", 1);
    report->failed = m->text.bytes.failed;
    rpc_write_map(&report->out, 1);
    rpc_write_text(&report->out, "text");
    if (!report->failed)
        rpc_write_any_text(&report->out, (const char *)m->text.bytes.data + m->text.bytes.start);
    return true;
}

bool metrics_begin(struct report *report)
{
    report->metrics.viewer = report->request->connection;
    report->metrics.s = report->request->connection->server;
    buffer_init(&report->metrics.text.bytes, TEXT_MAX);
    report->step = metrics_next;
    return false;
}
