/* The metrics of devices, of runs and kernels, of memory and of binaries. */
#include <math.h>
#include <stdio.h>

#include "server/code/code.h"
#include "server/exec/exec.h"
#include "server/observe/latency.h"
#include "server/observe/metrics.h"
#include "server/observe/room.h"
#include "server/peer/request.h"

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
