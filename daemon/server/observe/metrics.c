/* The method `metrics`: the metrics that proto/metrics.json declares, each written by a function of its own in
 * metrics_*.c. */

#include "server/observe/metrics.h"

#include <stdlib.h>

#include "server/observe/sampling.h"
#include "server/peer/long_reply.h"
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

/* The state of a reply while it is built. */
struct metrics_reply {
    struct metrics metrics;
    unsigned next;
};

static void reply_free(void *state)
{
    struct metrics_reply *m = state;

    buffer_free(&m->metrics.text.bytes);
    free(m);
}

/* Writes one metric after the other. */
static bool metrics_next(struct long_reply *reply)
{
    struct metrics_reply *m = reply->state;
    struct metrics_text *text = &m->metrics.text;

    if (m->next < METRIC_COUNT) {
        metrics_head(text, (enum metric)m->next);
        writers[m->next++](&m->metrics);
        return false;
    }
    buffer_append(&text->bytes, "", 1);
    reply->failed = text->bytes.failed;
    rpc_write_map(&reply->out, 1);
    rpc_write_text(&reply->out, "text");
    if (!reply->failed)
        rpc_write_any_text(&reply->out, (const char *)text->bytes.data + text->bytes.start);
    return true;
}

static bool metrics_begin(struct long_reply *reply)
{
    struct metrics_reply *m = calloc(1, sizeof(*m));

    if (!m) {
        reply->failed = true;
        return true;
    }
    reply->state = m;
    reply->free_state = reply_free;
    m->metrics.viewer = reply->request->connection;
    m->metrics.s = m->metrics.viewer->server;
    buffer_init(&m->metrics.text.bytes, TEXT_MAX);
    reply->step = metrics_next;
    return false;
}

void handle_metrics(struct request *r, const struct rpc_arg *args, struct request_fds *fds)
{
    (void)args;
    (void)fds;
    sampling_enqueue(r, metrics_begin);
}
