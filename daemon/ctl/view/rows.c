#include "rows.h"

#include <math.h>
#include <string.h>

#include "base/output.h"
#include "measure.h"

#define F(member) JSON_FIELD(struct kops_quantiles, member)
static const struct json_field quantiles_fields[] = {F(count), F(p50), F(p90), F(p99), F(p999), F(max), JSON_END};
#undef F

#define F(member) JSON_INSIDE(struct kops_latency, member, quantiles_fields)
static const struct json_field latency_fields[] = {F(queue), F(device), F(total), JSON_END};
#undef F

#define F(member)    JSON_FIELD(struct kops_client_info, member)
#define SOME(member) JSON_SOME(struct kops_client_info, member)
#define IN(member)   JSON_INSIDE(struct kops_client_info, member, member##_fields)
const struct json_field client_fields[] = {
    F(pid),       F(uid),     SOME(identity),  F(gid),         F(client),       F(comm),         F(connected_s),
    F(requests),  F(errors),  F(inflight),     F(queued),      F(buffers),      F(mapped_bytes), F(allocated_bytes),
    F(programs),  F(kernels), F(bytes_in),     F(bytes_out),   F(output_bytes), F(paused),       F(shm),
    F(device_us), F(here),    SOME(isolation), SOME(executor), IN(latency),     JSON_END};
#undef F
#undef SOME
#undef IN

#define F(member) JSON_IF_KNOWN(struct kops_user_limits, member)
static const struct json_field limits_fields[] = {
    F(connections),   F(buffers),  F(mappings), F(mapped_bytes), F(allocated_bytes), F(host_bytes),   F(program_bytes),
    F(waiting_bytes), F(inflight), F(fds),      F(kernel_bytes), F(messages_per_s),  F(device_share), JSON_END};
#undef F

#define F(member)    JSON_FIELD(struct kops_user_info, member)
#define SOME(member) JSON_SOME(struct kops_user_info, member)
#define IN(member)   JSON_INSIDE(struct kops_user_info, member, member##_fields)
const struct json_field user_fields[] = {
    F(uid),        SOME(identity),   F(connections),   F(buffers),  F(mappings), F(mapped_bytes), F(allocated_bytes),
    F(host_bytes), F(program_bytes), F(waiting_bytes), F(inflight), F(fds),      F(kernel_bytes), F(requests),
    F(refused),    F(device_us),     IN(limits),       JSON_END};
#undef F
#undef SOME
#undef IN

const char *client_state(const struct kops_client_info *c)
{
    return c->paused ? "paused" : c->inflight ? "busy" : "idle";
}

#define F(member) JSON_FIELD(struct kops_device_load, member)
static const struct json_field load_fields[] = {F(index), F(name), F(uuid), F(busy_us), F(running), JSON_END};
#undef F

void device_json(const void *device_load)
{
    const struct kops_device_load *d = device_load;

    json_fields(load_fields, d);
    if (d->memory_total) {
        json_uint("memory_total", d->memory_total);
        json_uint("memory_free", d->memory_free);
    }
    if (*d->conditions.missing || !isnan(d->conditions.clock_mhz) || !isnan(d->conditions.temperature_c))
        conditions_json("conditions", &d->conditions);
}

#define F(member) JSON_FIELD(struct kops_spread, member)
static const struct json_field spread_fields[] = {F(min), F(mean), F(p50), F(p90), F(p99), F(p999), F(max), JSON_END};
#undef F

static void spread_json(const char *key, const struct kops_spread *s)
{
    if (!isnan(s->p50))
        json_object(key, spread_fields, s);
}

#define KNOWN(member) JSON_IF_KNOWN(struct kops_stats_row, member)
#define F(member)     JSON_FIELD(struct kops_stats_row, member)
#define SOME(member)  JSON_SOME(struct kops_stats_row, member)
static const struct json_field row_names[] = {F(op), F(device), F(variant), F(dtype), JSON_END};
static const struct json_field row_counts[] = {F(count),     F(errors),         KNOWN(uid), SOME(identity),
                                               KNOWN(bytes), KNOWN(operations), JSON_END};
#undef F
#undef SOME
#undef KNOWN

void stats_row_json(const void *stats_row)
{
    const struct kops_stats_row *row = stats_row;

    json_fields(row_names, row);
    json_begin("shapes", '[');
    for (size_t i = 0; i < row->n_shapes; i++)
        json_ints(NULL, row->shapes[i].dims, row->shapes[i].rank);
    json_end(']');
    json_fields(row_counts, row);
    spread_json("queue_us", &row->queue_us);
    spread_json("exec_us", &row->exec_us);
    spread_json("total_us", &row->total_us);
}

const char *stats_shapes(const struct kops_stats_row *row)
{
    const char *all = "";

    for (size_t i = 0; i < row->n_shapes && strlen(all) + 1 < TEXT_SIZE; i++)
        all = text_format("%s%s%s", all, i ? "," : "", text_shape(row->shapes[i].dims, row->shapes[i].rank));
    return all;
}

void counters_map_json(const char *key, const struct kops_counter *const *counters)
{
    json_begin(key, '{');
    for (; *counters; counters++)
        json_uint((*counters)->name, (*counters)->value);
    json_end('}');
}

void counters_text(const char *title, const struct kops_counter *const *counters)
{
    for (const struct kops_counter *const *c = counters; *c; c++)
        printf("%s%s %llu%s", c == counters ? title : " ", (*c)->name, (unsigned long long)(*c)->value,
               c[1] ? "," : "\n");
}

#define F(member)     JSON_FIELD(struct kops_executor, member)
#define SOME(member)  JSON_SOME(struct kops_executor, member)
#define KNOWN(member) JSON_IF_KNOWN(struct kops_executor, member)
const struct json_field executor_fields[] = {F(pid),         F(state),         SOME(domain),     KNOWN(uid),
                                             SOME(identity), SOME(connection), SOME(client_pid), F(jobs),
                                             F(uptime_s),    F(device_us),     JSON_END};
#undef SOME
#undef KNOWN

static const char *domain_text(const struct kops_executor *x)
{
    const unsigned long long connection = x->connection;

    if (!x->domain)
        return "-";
    if (strcmp(x->domain, "user") == 0)
        return text_format("user %s", text_owner(x->uid, x->identity));
    if (strcmp(x->domain, "connection") != 0)
        return text_clean(x->domain);
    if (x->uid < 0)
        return text_format("connection %llu (closed)", connection);
    return text_format("connection %llu (pid %lld, user %s)", connection, (long long)x->client_pid,
                       text_owner(x->uid, x->identity));
}

void executors_print(const struct kops_executor *const *list, const double *shares, FILE *to, size_t max_rows)
{
    struct table t;

    if (!*list)
        return;
    table_init(&t, ">executor\tstate\tworks for\t>jobs\t>up\t>device");
    for (size_t i = 0; list[i]; i++) {
        const struct kops_executor *x = list[i];
        const double share = x->uptime_s > 0 ? x->device_us * 1e-6 / x->uptime_s : (double)NAN;

        table_row(&t, "%lld\t%s\t%s\t%llu\t%s\t%s", (long long)x->pid, text_clean(x->state), domain_text(x),
                  (unsigned long long)x->jobs, text_duration(x->uptime_s), text_percent(shares ? shares[i] : share));
    }
    table_write(&t, to, max_rows);
}

void executors_text(const struct kops_stats *s)
{
    bool any = *s->executors != NULL;

    for (const struct kops_counter *const *c = s->executor_counts; *c; c++)
        any |= (*c)->value != 0;
    if (!any)
        return;
    counters_text("executors: ", s->executor_counts);
    if (*s->executors)
        printf("\n");
    executors_print(s->executors, NULL, stdout, SIZE_MAX);
}
