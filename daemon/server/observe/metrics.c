/* The method `metrics`: the metrics that proto/metrics.json declares, each written by a function of its own. */
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "proto/generated/metrics.h"
#include "server/code/code.h"
#include "server/exec/exec.h"
#include "server/observe/executors.h"
#include "server/observe/latency.h"
#include "server/observe/room.h"
#include "server/peer/access.h"
#include "server/peer/connection.h"
#include "server/peer/request.h"
#include "util/buffer.h"
#include "util/clock.h"
#include "util/log.h"

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

/* The lines HELP and TYPE. */
static void metrics_head(struct metrics_text *t, enum metric metric)
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

/* Begins a line: the metric's name with `suffix`. Labels follow, then a value, which ends it. */
static void metrics_sample(struct metrics_text *t, enum metric metric, const char *suffix)
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

/* `value` may be any text: characters that the format cannot escape are replaced. */
static void metrics_label(struct metrics_text *t, const char *name, const char *value)
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

static void metrics_label_uint(struct metrics_text *t, const char *name, uint64_t value)
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

static void metrics_uint(struct metrics_text *t, uint64_t value)
{
    char text[24];

    snprintf(text, sizeof(text), "%" PRIu64, value);
    end(t, text);
}

static void metrics_double(struct metrics_text *t, double value)
{
    char text[32];

    /* the shortest text that reads back as the same number */
    snprintf(text, sizeof(text), "%.15g", value);
    if (strtod(text, NULL) != value)
        snprintf(text, sizeof(text), "%.17g", value);
    end(t, text);
}

struct metrics {
    struct metrics_text text;
    const struct connection *viewer;
    struct server *s;
};

/* A metric with one sample, without labels. */
static void metrics_one(struct metrics *m, enum metric metric, uint64_t value)
{
    metrics_sample(&m->text, metric, "");
    metrics_uint(&m->text, value);
}

static void metrics_one_double(struct metrics *m, enum metric metric, double value)
{
    metrics_sample(&m->text, metric, "");
    metrics_double(&m->text, value);
}

/* The function that writes a metric. */
#define METRIC(id) static void metric_##id(struct metrics *m)

/* A counter or plain number. */
#define METRIC_VALUE(id, value)                                                                                        \
    METRIC(id)                                                                                                         \
    {                                                                                                                  \
        metrics_one(m, METRIC_##id, (value));                                                                          \
    }

/* ---- executors ---- */

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

/* The metrics of the daemon itself: its process, connections, requests and users. */

/* ---- the process ---- */

METRIC(build_info)
{
    metrics_sample(&m->text, METRIC_build_info, "");
    metrics_label(&m->text, "version", KOPS_VERSION);
    metrics_uint(&m->text, 1);
}

METRIC(start_time_seconds)
{
    metrics_one_double(m, METRIC_start_time_seconds, m->s->started_s);
}

METRIC(uptime_seconds)
{
    metrics_one_double(m, METRIC_uptime_seconds, clock_us_between(m->s->started_ns, clock_now_ns()) * 1e-6);
}

METRIC(state)
{
    for (unsigned i = 0; i < STATE_COUNT; i++) {
        metrics_sample(&m->text, METRIC_state, "");
        metrics_label(&m->text, "state", server_state_names[i]);
        metrics_uint(&m->text, server_state(m->s) == i);
    }
}

METRIC(resident_memory_bytes)
{
    if (m->s->observe->sampling.resident_bytes != UINT64_MAX)
        metrics_one(m, METRIC_resident_memory_bytes, m->s->observe->sampling.resident_bytes);
}

METRIC(open_fds)
{
    if (m->s->observe->sampling.open_fds != UINT64_MAX)
        metrics_one(m, METRIC_open_fds, m->s->observe->sampling.open_fds);
}

METRIC(max_fds)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        metrics_one(m, METRIC_max_fds, limit.rlim_cur);
}

METRIC(cpu_seconds_total)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    metrics_one_double(m, METRIC_cpu_seconds_total, (double)t.tv_sec + (double)t.tv_nsec * 1e-9);
}

METRIC_VALUE(log_lines_held_back_total, log_lines_held_back())
METRIC_VALUE(log_lines_lost_total, log_lines_lost())

/* ---- connections ---- */

METRIC_VALUE(connections, peers_open_connections(m->s))
METRIC_VALUE(connections_total, m->s->counters.connections_total)
METRIC_VALUE(connections_turned_away_total, m->s->totals.turned_away)
METRIC_VALUE(protocol_errors_total, m->s->counters.protocol_errors)
METRIC_VALUE(received_bytes_total, m->s->counters.bytes_in)
METRIC_VALUE(sent_bytes_total, m->s->counters.bytes_out)

METRIC(clients_dropped_total)
{
    metrics_sample(&m->text, METRIC_clients_dropped_total, "");
    metrics_label(&m->text, "why", "stuck_reader");
    metrics_uint(&m->text, m->s->totals.dropped_readers);
    metrics_sample(&m->text, METRIC_clients_dropped_total, "");
    metrics_label(&m->text, "why", "partial_message");
    metrics_uint(&m->text, m->s->totals.dropped_senders);
}

/* The client's name as the text will have it. Names that differ only before the replacement are one series: a scraper
 * that finds two series with the same labels rejects the whole answer. */
static void name_of(const struct connection *c, char into[CLIENT_NAME_MAX + 1])
{
    memcpy(into, c->client, CLIENT_NAME_MAX + 1);
    for (char *p = into; *p; p++)
        if (((unsigned char)*p < 0x20 && *p != '\n') || *p == 0x7f)
            *p = '?';
    rpc_make_text(into);
}

METRIC(client_connections)
{
    enum { NAMES_MAX = 32 };
    static const char others[] = "(other)";
    char names[NAMES_MAX + 1][CLIENT_NAME_MAX + 1];
    unsigned counts[NAMES_MAX + 1] = {0}, n = 0;

    list_for_each_safe (node, after, peers_connections(m->s)) {
        const struct connection *c = list_entry(node, struct connection, link);
        unsigned i = 0;

        if (c->closed || !may_see(m->viewer, c->uid))
            continue;
        name_of(c, names[n]);
        while (i < n && strcmp(names[i], names[n]) != 0)
            i++;
        if (i == n && n < NAMES_MAX && strcmp(names[n], others) != 0)
            n++;
        counts[i < n ? i : NAMES_MAX]++;
    }
    for (unsigned i = 0; i < n; i++) {
        metrics_sample(&m->text, METRIC_client_connections, "");
        metrics_label(&m->text, "client", names[i]);
        metrics_uint(&m->text, counts[i]);
    }
    if (!counts[NAMES_MAX])
        return;
    metrics_sample(&m->text, METRIC_client_connections, "");
    metrics_label(&m->text, "client", others);
    metrics_uint(&m->text, counts[NAMES_MAX]);
}

/* ---- requests ---- */

METRIC(requests_total)
{
    for (unsigned i = 0; i <= METHOD_COUNT; i++) {
        metrics_sample(&m->text, METRIC_requests_total, "");
        metrics_label(&m->text, "method", request_method_name(m->s, i));
        metrics_uint(&m->text, m->s->totals.requests[i]);
    }
}

METRIC_VALUE(replies_total, m->s->counters.replies)

/* All errors that the daemon itself raises, so that each series exists before its first error. */
METRIC(errors_total)
{
#define X(NAME, name, value)                                                                                           \
    if (ERROR_##NAME < ERROR_CONNECT_FAILED) {                                                                         \
        metrics_sample(&m->text, METRIC_errors_total, "");                                                             \
        metrics_label(&m->text, "code", name);                                                                         \
        metrics_uint(&m->text, m->s->totals.errors[ERROR_##NAME]);                                                     \
    }
    KOPS_ERRORS(X)
#undef X
}

METRIC(requests_in_flight)
{
    uint64_t n = 0;

    list_for_each_safe (node, after, peers_connections(m->s)) {
        n += list_entry(node, struct connection, link)->inflight;
    }
    metrics_one(m, METRIC_requests_in_flight, n);
}

METRIC_VALUE(work_in_flight, m->s->admission.work)
METRIC_VALUE(jobs_total, m->s->counters.jobs)
METRIC_VALUE(jobs_cancelled_total, m->s->counters.jobs_cancelled)
METRIC_VALUE(launches_total, m->s->counters.launches)
METRIC_VALUE(faults_total, m->s->totals.faults)
METRIC_VALUE(profile_rows_dropped, profile_rows_dropped(m->s->observe->profile))

/* ---- users ---- */

/* The number of an identity says nothing to people. */
static void label_account(struct metrics *m, const struct account *a)
{
    if (uid_is_identity(a->uid))
        metrics_label(&m->text, "uid", "");
    else
        metrics_label_uint(&m->text, "uid", a->uid);
    metrics_label(&m->text, "identity", identities_name(&m->s->accounts.identities, a->uid));
}

/* An account is kept for a while after the user's last connection, and so are its series. */
static void of_users(struct metrics *m, enum metric metric, uint64_t (*value)(const struct account *a))
{
    list_for_each_safe (node, after, &m->s->accounts.all) {
        const struct account *a = list_entry(node, struct account, link);

        if (!may_see_account(m->viewer, a))
            continue;
        metrics_sample(&m->text, metric, "");
        label_account(m, a);
        metrics_uint(&m->text, value(a));
    }
}

#define METRIC_OF_USERS(id, value)                                                                                     \
    static uint64_t id##_of(const struct account *a)                                                                   \
    {                                                                                                                  \
        return (value);                                                                                                \
    }                                                                                                                  \
    METRIC(id)                                                                                                         \
    {                                                                                                                  \
        of_users(m, METRIC_##id, id##_of);                                                                             \
    }

METRIC_OF_USERS(user_connections, a->used[QUOTA_CONNECTIONS])
METRIC_OF_USERS(user_buffers, a->used[QUOTA_BUFFERS])
METRIC_OF_USERS(user_mapped_bytes, a->used[QUOTA_MAPPED])
METRIC_OF_USERS(user_allocated_bytes, a->used[QUOTA_ALLOCATED])
METRIC_OF_USERS(user_kernel_bytes, a->used[QUOTA_KERNEL])
METRIC_OF_USERS(user_fds, a->used[QUOTA_FDS])
METRIC_OF_USERS(user_mappings, a->used[QUOTA_MAPPINGS])
METRIC_OF_USERS(user_host_bytes, a->used[QUOTA_HOST])
METRIC_OF_USERS(user_program_bytes, a->used[QUOTA_PROGRAMS])
METRIC_OF_USERS(user_waiting_bytes, a->used[QUOTA_WAITING])
METRIC_OF_USERS(user_requests_in_flight, a->used[QUOTA_INFLIGHT])
METRIC_OF_USERS(user_requests_total, a->requests)
METRIC_OF_USERS(user_refused_total, a->refused)

METRIC(user_device_seconds_total)
{
    list_for_each_safe (node, after, &m->s->accounts.all) {
        const struct account *a = list_entry(node, struct account, link);

        if (!may_see_account(m->viewer, a))
            continue;
        metrics_sample(&m->text, METRIC_user_device_seconds_total, "");
        label_account(m, a);
        metrics_double(&m->text, a->device_us * 1e-6);
    }
}

METRIC(refusals_total)
{
    for (unsigned i = 0; i < REFUSED_COUNT; i++) {
        metrics_sample(&m->text, METRIC_refusals_total, "");
        metrics_label(&m->text, "what", account_refused_name(i));
        metrics_uint(&m->text, m->s->accounts.refused[i]);
    }
}

/* The metrics of devices, of runs and kernels, of memory and of binaries. */

/* ---- devices ---- */

static void begin(struct metrics *m, enum metric metric, unsigned device)
{
    metrics_sample(&m->text, metric, "");
    metrics_label_uint(&m->text, "device", device);
}

METRIC(device_info)
{
    for (unsigned i = 0; i < m->s->devices.count; i++) {
        const struct backend_device *d = m->s->devices.all[i];

        begin(m, METRIC_device_info, i);
        metrics_label(&m->text, "uuid", d->info.uuid);
        metrics_label(&m->text, "name", d->info.name);
        metrics_label(&m->text, "backend", d->backend->name);
        metrics_uint(&m->text, 1);
    }
}

METRIC(device_busy_seconds_total)
{
    for (unsigned i = 0; i < m->s->devices.count; i++) {
        begin(m, METRIC_device_busy_seconds_total, i);
        metrics_double(&m->text, m->s->totals.device_us[i] * 1e-6);
    }
}

METRIC(device_memory_bytes)
{
    for (unsigned i = 0; i < m->s->devices.count; i++) {
        begin(m, METRIC_device_memory_bytes, i);
        metrics_uint(&m->text, m->s->devices.all[i]->info.memory_bytes);
    }
}

METRIC(device_memory_free_bytes)
{
    for (unsigned i = 0; i < m->s->devices.count; i++) {
        if (m->s->observe->sampling.memory_free[i] == UINT64_MAX)
            continue;
        begin(m, METRIC_device_memory_free_bytes, i);
        metrics_uint(&m->text, m->s->observe->sampling.memory_free[i]);
    }
}

static void write_condition(struct metrics *m, enum metric metric, unsigned device, const char *label,
                            const char *value, double number)
{
    if (isnan(number))
        return;
    begin(m, metric, device);
    if (label)
        metrics_label(&m->text, label, value);
    metrics_double(&m->text, number);
}

/* Two series a device, told apart by `label`. */
#define CONDITIONS_OF_TWO(id, label, first, first_member, second, second_member, factor)                               \
    METRIC(id)                                                                                                         \
    {                                                                                                                  \
        for (unsigned i = 0; i < m->s->devices.count; i++) {                                                           \
            const struct backend_conditions *c = &m->s->observe->sampling.conditions[i];                               \
                                                                                                                       \
            write_condition(m, METRIC_##id, i, label, first, c->first_member *(factor));                               \
            write_condition(m, METRIC_##id, i, label, second, c->second_member *(factor));                             \
        }                                                                                                              \
    }

#define CONDITION(id, member)                                                                                          \
    METRIC(id)                                                                                                         \
    {                                                                                                                  \
        for (unsigned i = 0; i < m->s->devices.count; i++)                                                             \
            write_condition(m, METRIC_##id, i, NULL, NULL, m->s->observe->sampling.conditions[i].member);              \
    }

CONDITIONS_OF_TWO(device_clock_hertz, "domain", "compute", clock_mhz, "memory", memory_clock_mhz, 1e6)
CONDITIONS_OF_TWO(device_clock_max_hertz, "domain", "compute", clock_max_mhz, "memory", memory_clock_max_mhz, 1e6)
CONDITION(device_temperature_celsius, temperature_c)
CONDITION(device_power_watts, power_w)
CONDITION(device_power_limit_watts, power_limit_w)
CONDITIONS_OF_TWO(device_slowed_seconds_total, "why", "power", power_slowed_us, "thermal", thermal_slowed_us, 1e-6)

METRIC(jobs_running)
{
    for (unsigned i = 0; i < m->s->devices.count; i++) {
        begin(m, METRIC_jobs_running, i);
        metrics_uint(&m->text, exec_jobs_on(m->s, m->s->devices.all[i]));
    }
}

METRIC(jobs_queued)
{
    uint64_t n = 0;

    list_for_each_safe (node, after, peers_connections(m->s)) {
        n += exec_queued(list_entry(node, struct connection, link));
    }
    metrics_one(m, METRIC_jobs_queued, n);
}

/* ---- memory ---- */

METRIC(mappings)
{
    static const char *const names[] = {[MAPPING_CLOSED] = "closed",
                                        [MAPPING_OPENING] = "opening",
                                        [MAPPING_OPEN] = "open",
                                        [MAPPING_CLOSING] = "closing"};

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        metrics_sample(&m->text, METRIC_mappings, "");
        metrics_label(&m->text, "state", names[i]);
        metrics_uint(&m->text, m->s->mappings.in_state[i]);
    }
}

/* ---- compiled code ---- */

METRIC(compiles_total)
{
    metrics_one(m, METRIC_compiles_total, code_counters_of(m->s).compiles);
}

METRIC(compile_failures_total)
{
    metrics_one(m, METRIC_compile_failures_total, code_counters_of(m->s).failures);
}

METRIC(compile_joins_total)
{
    metrics_one(m, METRIC_compile_joins_total, code_counters_of(m->s).joins);
}

METRIC(compile_cache_hits_total)
{
    const struct code_counters n = code_counters_of(m->s);
    struct code_remote_counters remote;
    struct remote_report report;

    metrics_sample(&m->text, METRIC_compile_cache_hits_total, "");
    metrics_label(&m->text, "cache", "memory");
    metrics_uint(&m->text, n.memory_hits);
    metrics_sample(&m->text, METRIC_compile_cache_hits_total, "");
    metrics_label(&m->text, "cache", "disk");
    metrics_uint(&m->text, n.disk_hits);
    if (!code_remote_of(m->s, &remote, &report))
        return;
    metrics_sample(&m->text, METRIC_compile_cache_hits_total, "");
    metrics_label(&m->text, "cache", "remote");
    metrics_uint(&m->text, remote.hits);
}

METRIC(remote_cache_requests_total)
{
    struct code_remote_counters n;
    struct remote_report report;

    if (!code_remote_of(m->s, &n, &report))
        return;
    const struct {
        const char *result;
        uint64_t count;
    } rows[] = {{"hit", n.hits},        {"miss", n.misses},       {"late", n.late},
                {"failed", n.failures}, {"rejected", n.rejected}, {"skipped", n.skipped}};

    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        metrics_sample(&m->text, METRIC_remote_cache_requests_total, "");
        metrics_label(&m->text, "result", rows[i].result);
        metrics_uint(&m->text, rows[i].count);
    }
}

METRIC(remote_cache_uploads_total)
{
    struct code_remote_counters n;
    struct remote_report report;

    if (!code_remote_of(m->s, &n, &report))
        return;
    const struct {
        const char *result;
        uint64_t count;
    } rows[] = {{"stored", n.uploads}, {"failed", n.upload_failures}, {"dropped", n.upload_drops}};

    for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        metrics_sample(&m->text, METRIC_remote_cache_uploads_total, "");
        metrics_label(&m->text, "result", rows[i].result);
        metrics_uint(&m->text, rows[i].count);
    }
}

METRIC(remote_cache_up)
{
    struct code_remote_counters n;
    struct remote_report report;

    if (code_remote_of(m->s, &n, &report))
        metrics_one(m, METRIC_remote_cache_up, report.state == REMOTE_SERVING || report.state == REMOTE_STARTING);
}

/* ---- ops ---- */

struct op_labels {
    const char *op, *dtype;
    unsigned device;
};

static void begin_op(struct metrics *m, enum metric metric, const char *suffix, const struct op_labels *labels)
{
    metrics_sample(&m->text, metric, suffix);
    metrics_label(&m->text, "op", labels->op);
    metrics_label(&m->text, "dtype", labels->dtype);
    metrics_label_uint(&m->text, "device", labels->device);
}

/* The bounds as text, in seconds. Made once, as that takes longer than all the rest. */
static const char *bound_text(unsigned i)
{
    static char texts[LATENCY_BOUNDS][16];

    if (i == LATENCY_BOUNDS)
        return "+Inf";
    if (!*texts[i])
        snprintf(texts[i], sizeof(texts[i]), "%g", (double)latency_bounds_ns[i] * 1e-9);
    return texts[i];
}

static void write_histogram(struct metrics *m, enum metric metric, enum latency_part part, const struct latency_op *op,
                            const struct op_labels *labels)
{
    uint64_t n = 0;

    for (unsigned i = 0; i <= LATENCY_BOUNDS; i++) {
        n += op->buckets[part][i];
        begin_op(m, metric, "_bucket", labels);
        metrics_label(&m->text, "le", bound_text(i));
        metrics_uint(&m->text, n);
    }
    begin_op(m, metric, "_sum", labels);
    metrics_double(&m->text, (double)op->sum_ns[part] * 1e-9);
    begin_op(m, metric, "_count", labels);
    metrics_uint(&m->text, n);
}

static void write_ops(struct metrics *m, enum metric metric, enum latency_part part)
{
    for (unsigned d = 0; d < m->s->devices.count; d++)
        for (unsigned k = 0; k < LATENCY_KINDS; k++)
            for (unsigned t = 0; t < LATENCY_DTYPES; t++) {
                const struct op_labels labels = {latency_kind_name(k), t ? dtype_name((enum dtype)t) : "", d};
                const struct latency_op *op = m->s->observe->latencies->ops[d][k][t];

                if (op)
                    write_histogram(m, metric, part, op, &labels);
            }
}

METRIC(op_queue_seconds)
{
    write_ops(m, METRIC_op_queue_seconds, LATENCY_QUEUE);
}

METRIC(op_device_seconds)
{
    write_ops(m, METRIC_op_device_seconds, LATENCY_DEVICE);
}

METRIC(op_total_seconds)
{
    write_ops(m, METRIC_op_total_seconds, LATENCY_TOTAL);
}

/* ---- the method ---- */

enum { TEXT_MAX = 32 * 1024 * 1024 };

typedef void metric_writer(struct metrics *m);
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
