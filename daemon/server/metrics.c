/* The method `metrics`: what proto/metrics.json declares, each metric by a function of its own in
 * metrics_*.c. */
#include "server/metrics.h"
#include "server/request.h"
#include "server/sampling.h"

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

void metrics_now(struct request *r)
{
    struct metrics m = {.viewer = r->connection, .s = r->connection->server};
    struct rpc_output *out;
    struct error e;

    buffer_init(&m.text.bytes, TEXT_MAX);
    for (unsigned i = 0; i < METRIC_COUNT; i++) {
        metrics_head(&m.text, (enum metric)i);
        writers[i](&m);
    }
    buffer_append(&m.text.bytes, "", 1);
    if (m.text.bytes.failed) {
        error_set(&e, ERROR_OUT_OF_MEMORY, "no memory for the metrics");
        request_error(r, &e);
    } else if ((out = request_result(r))) {
        rpc_write_map(out, 1);
        rpc_write_text(out, "text");
        rpc_write_any_text(out, (const char *)m.text.bytes.data + m.text.bytes.start);
    }
    buffer_free(&m.text.bytes);
    request_end(r);
}
