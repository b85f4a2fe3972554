/* The method `metrics`: the metrics that proto/metrics.json declares, each written by a function of its own in
 * metrics_*.c. */
#include "server/observe/metrics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/observe/executors.h"
#include "server/observe/room.h"
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
struct metrics_walk {
    struct metrics metrics;
    unsigned next;
};

static void reply_free(void *state)
{
    struct metrics_walk *m = state;

    buffer_free(&m->metrics.text.bytes);
    free(m);
}

/* Writes one metric after the other. */
static bool metrics_next(struct long_reply *reply)
{
    struct metrics_walk *m = reply->state;
    struct metrics_text *text = &m->metrics.text;

    if (m->next < METRIC_COUNT) {
        metrics_head(text, (enum metric)m->next);
        writers[m->next++](&m->metrics);
        return false;
    }
    buffer_append(&text->bytes, "", 1);
    reply->failed = text->bytes.failed;
    if (!reply->failed)
        rpc_write_record(&reply->out,
                         RECORD(metrics_reply, .text = (const char *)text->bytes.data + text->bytes.start));
    return true;
}

static bool metrics_begin(struct long_reply *reply)
{
    struct metrics_walk *m = calloc(1, sizeof(*m));

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

/* ---- metrics text ---- */

static const struct {
    const char *name, *type, *help;
} table[METRIC_COUNT] = {
#define X(id, name, type, help) [METRIC_##id] = {name, type, help},
    KOPS_METRICS(X)
#undef X
};

static void put(struct metrics_text *t, const char *text)
{
    buffer_append(&t->bytes, text, strlen(text));
}

void metrics_head(struct metrics_text *t, enum metric metric)
{
    put(t, "# HELP ");
    put(t, table[metric].name);
    put(t, " ");
    put(t, table[metric].help);
    put(t, "\n# TYPE ");
    put(t, table[metric].name);
    put(t, " ");
    put(t, table[metric].type);
    put(t, "\n");
}

void metrics_sample(struct metrics_text *t, enum metric metric, const char *suffix)
{
    t->labelled = false;
    put(t, table[metric].name);
    put(t, suffix);
}

/* Whether a label's value needs `c` replaced or escaped. True for the terminating zero, too. */
static bool has_to_go(char c)
{
    return c == '\\' || c == '"' || (unsigned char)c < 0x20 || c == 0x7f;
}

void metrics_label(struct metrics_text *t, const char *name, const char *value)
{
    put(t, t->labelled ? "," : "{");
    t->labelled = true;
    put(t, name);
    put(t, "=\"");
    while (*value) {
        size_t n = 0;

        while (!has_to_go(value[n]))
            n++;
        buffer_append(&t->bytes, value, n);
        value += n;
        if (*value)
            put(t, *value == '\\' ? "\\\\" : *value == '"' ? "\\\"" : *value == '\n' ? "\\n" : "?");
        value += *value != '\0';
    }
    put(t, "\"");
}

void metrics_label_uint(struct metrics_text *t, const char *name, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRIu64, value);
    metrics_label(t, name, text);
}

static void end(struct metrics_text *t, const char *value)
{
    put(t, t->labelled ? "} " : " ");
    put(t, value);
    put(t, "\n");
}

void metrics_uint(struct metrics_text *t, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRIu64, value);
    end(t, text);
}

void metrics_double(struct metrics_text *t, double value)
{
    char text[32];

    /* the shortest text that reads back as the same number */
    snprintf(text, sizeof(text), "%.15g", value);
    if (strtod(text, NULL) != value)
        snprintf(text, sizeof(text), "%.17g", value);
    end(t, text);
}

/* ---- metrics executors ---- */

METRIC(executors)
{
    struct executors x;

    executors_look(m->s, &x);
    for (unsigned state = 0; state <= PROCESS_ENDING; state++) {
        uint64_t n = 0;

        for (unsigned i = 0; i < x.n; i++)
            n += x.all[i].state == state;
        metrics_sample(&m->text, METRIC_executors, "");
        metrics_label(&m->text, "state", executor_state_names[state]);
        metrics_uint(&m->text, n);
    }
}

static struct backend_process_counts counts(const struct metrics *m)
{
    struct executors x;

    executors_look(m->s, &x);
    return x.counts;
}

METRIC_VALUE(executors_started_total, counts(m).started)
METRIC_VALUE(executors_replaced_total, counts(m).replaced)
METRIC_VALUE(executor_faults_total, counts(m).faults)
METRIC_VALUE(executor_jobs_ended_total, counts(m).ended_jobs)

METRIC(executor_device_seconds_total)
{
    for (unsigned kind = ISOLATE_NONE; kind < ISOLATE_COUNT; kind++) {
        metrics_sample(&m->text, METRIC_executor_device_seconds_total, "");
        metrics_label(&m->text, "domain", executor_domain_names[kind]);
        metrics_double(&m->text, m->s->observe->executor_device_us[kind] * 1e-6);
    }
}
