#include "rows.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/output.h"

/* ---- times ---- */

double result_kernel_us(const struct kops_result *result)
{
    return isnan(result->gpu_us) ? result->host_us : result->gpu_us;
}

void result_print_more(const struct kops_result *result)
{
    if (!isnan(result->median_us))
        printf("%zu executions: min %.1f, median %.1f, p90 %.1f, max %.1f us\n", result->n_samples, result->min_us,
               result->median_us, result->p90_us, result->max_us);
    if (!isnan(result->h2d_us) || !isnan(result->d2h_us))
        printf("copies: to the device %.1f, back %.1f us\n", result->h2d_us, result->d2h_us);
}

#define F(member)  JSON_FIELD_AS(#member, struct kops_result, member##_us, JSON_ALWAYS)
#define US(member) JSON_FIELD(struct kops_result, member##_us)
static const struct json_field timings_fields[] = {
    US(send), US(recv_to_start), US(map),  US(queue), US(wait), US(h2d),   US(d2h), US(gpu), US(host),
    US(end),  US(total),         US(wall), US(reply), F(min),   F(median), F(p90),  F(max),  JSON_END};
#undef F
#undef US

void result_json_timings(const struct kops_result *result, const double *samples, size_t room)
{
    json_begin("timings", '{');
    json_fields(timings_fields, result);
    if (result->n_samples) {
        json_begin("samples", '[');
        for (size_t i = 0; i < result->n_samples && i < room; i++)
            json_number(NULL, samples[i]);
        json_end(']');
    }
    json_end('}');
}

/* ---- conditions ---- */

/* tests/vectors/conditions.json holds the line to that of the Python client (kops/_base/conditions.py). */

#define SAME 0.02 /* clocks that differ by less are the same */

/* Appends ", memory 1980 -> 1590 of 1980 MHz"; nothing where nothing is known. */
static void add_number(FILE *l, const char *name, double before, double after, double most, const char *unit)
{
    char from[32], to[32];

    if (isnan(before) && isnan(after))
        return;
    snprintf(from, sizeof(from), "%.0f", isnan(before) ? after : before);
    snprintf(to, sizeof(to), "%.0f", isnan(after) ? before : after);
    fprintf(l, "%s%s", ftell(l) ? ", " : "", name);
    if (strcmp(from, to) != 0)
        fprintf(l, "%s -> ", from);
    fprintf(l, "%s", to);
    if (!isnan(most))
        fprintf(l, " of %.0f", most);
    fprintf(l, " %s", unit);
}

static bool has_reason(const struct kops_conditions *c, const char *word)
{
    for (const char *const *reason = c->reasons; *reason; reason++)
        if (strcmp(*reason, word) == 0)
            return true;
    return false;
}

static bool differs(double before, double after)
{
    return !isnan(before) && !isnan(after) && fabs(after - before) > SAME * fmax(before, after);
}

static bool fell(double before, double after)
{
    return differs(before, after) && after < before;
}

/* How long the clocks were kept down between the readings; 0 where it is not known. */
static double slowed_us(double before, double after)
{
    return isnan(before) || isnan(after) || after < before ? 0 : after - before;
}

/* Adds the reasons that make times longer; other reasons are harmless. */
static bool add_reasons(FILE *l, const struct kops_conditions *before, const struct kops_conditions *after)
{
    static const char *const slowing[] = {"power_cap", "hw_slowdown", "thermal", "hw_thermal", "power_brake"};
    const double power = slowed_us(before->power_slowed_us, after->power_slowed_us);
    const double heat = slowed_us(before->thermal_slowed_us, after->thermal_slowed_us);
    const bool known_heat = has_reason(before, "hw_thermal") || has_reason(after, "hw_thermal");
    bool any = false;

    for (size_t i = 0; i < sizeof(slowing) / sizeof(slowing[0]); i++) {
        const bool between = (power > 0 && strcmp(slowing[i], "power_cap") == 0) ||
                             (heat > 0 && strcmp(slowing[i], "thermal") == 0 && !known_heat);

        if (!between && !has_reason(before, slowing[i]) && !has_reason(after, slowing[i]))
            continue;
        fprintf(l, "%s%s", any ? ", " : "; WARNING: the clocks were kept down by ", slowing[i]);
        any = true;
    }
    if (any && power + heat > 0)
        fprintf(l, " (for %.1f ms)", (power + heat) / 1e3);
    return any;
}

static void add_warning(FILE *l, const struct kops_conditions *before, const struct kops_conditions *after)
{
    if (add_reasons(l, before, after))
        return;
    if (fell(before->clock_mhz, after->clock_mhz) || fell(before->memory_clock_mhz, after->memory_clock_mhz))
        fprintf(l, "; WARNING: the clocks fell while it was measured");
    else if (differs(before->clock_mhz, after->clock_mhz) || differs(before->memory_clock_mhz, after->memory_clock_mhz))
        fprintf(l, "; WARNING: the clocks rose while it was measured: more warmup makes the times alike");
}

const char *conditions_text(const struct kops_conditions *before, const struct kops_conditions *after, char *into,
                            size_t size)
{
    FILE *l;

    memset(into, 0, size);
    l = fmemopen(into, size - 1, "w"); /* a text that is too long is cut */
    if (!l)
        return into;
    if (*after->missing) {
        fprintf(l, "clocks and temperature are not known: %s", text_clean(after->missing));
    } else {
        add_number(l, "", before->clock_mhz, after->clock_mhz, after->clock_max_mhz, "MHz");
        add_number(l, "memory ", before->memory_clock_mhz, after->memory_clock_mhz, after->memory_clock_max_mhz, "MHz");
        add_number(l, "", before->temperature_c, after->temperature_c, (double)NAN, "C");
        add_number(l, "", before->power_w, after->power_w, after->power_limit_w, "W");
        add_warning(l, before, after);
    }
    fclose(l);
    return into;
}

#define F(member) JSON_FIELD(struct kops_conditions, member)
static const struct json_field conditions_fields[] = {
    F(clock_mhz), F(clock_max_mhz), F(memory_clock_mhz), F(memory_clock_max_mhz), F(temperature_c),
    F(power_w),   F(power_limit_w), F(power_slowed_us),  F(thermal_slowed_us),    F(reasons),
    JSON_END};
#undef F

void conditions_json(const char *key, const struct kops_conditions *c)
{
    JSON_MAP(key, *c->missing ? json_text("missing", c->missing) : json_fields(conditions_fields, c));
}

void conditions_read(kops_client *client, const char *device, struct kops_conditions **ret)
{
    struct kops_error ignored; /* a device that tells nothing can still be measured */

    if (kops_conditions(client, device, ret, &ignored))
        *ret = NULL;
}

void conditions_pair_print(const struct conditions_pair *pair)
{
    char line[400];

    if (pair->before && pair->after)
        printf("%s\n", conditions_text(pair->before, pair->after, line, sizeof(line)));
}

void conditions_pair_json(const struct conditions_pair *pair)
{
    if (!pair->before || !pair->after)
        return;
    JSON_MAP("conditions", conditions_json("before", pair->before), conditions_json("after", pair->after));
}

void conditions_pair_free(struct conditions_pair *pair)
{
    pair->before = kops_conditions_free(pair->before);
    pair->after = kops_conditions_free(pair->after);
}

/* ---- counters ---- */

enum { STALLS_SHOWN = 3 };

/* NAN: the device does not count it. */
static double find(const struct kops_counters *c, const char *name)
{
    for (size_t i = 0; i < c->n_values; i++)
        if (!strcmp(c->values[i].name, name))
            return c->values[i].value;
    return (double)NAN;
}

static void print_percent(const char *what, double value, bool first)
{
    printf("%s%s ", first ? "" : ", ", what);
    if (isnan(value))
        printf("-");
    else
        printf("%.1f %%", value);
}

static void print_percents(const struct kops_counters *c)
{
    static const struct {
        const char *title, *what[4], *names[4];
    } lines[] = {
        {"of peak", {"DRAM", "L2", "L1", "SM"}, {"dram_pct", "l2_pct", "l1_pct", "sm_pct"}},
        {"in use", {"tensor cores", "issue slots"}, {"tensor_pct", "issue_pct"}},
        {"cache hits", {"L2", "L1"}, {"l2_hit_pct", "l1_hit_pct"}},
    };

    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        printf("  %-14s  ", lines[i].title);
        for (unsigned k = 0; k < 4 && lines[i].names[k]; k++)
            print_percent(lines[i].what[k], find(c, lines[i].names[k]), k == 0);
        printf("\n");
    }
}

static void print_launch(const struct kops_counters *c)
{
    const struct kops_counter_launch *l = &c->launch;

    printf("  %-14s  ", "occupancy");
    print_percent("achieved", find(c, "occupancy_pct"), true);
    if (c->has_launch && l->occupancy_pct < 100) /* not where it is NAN */
        printf(", allowed %.1f %% (limit: %s)", l->occupancy_pct,
               !strcmp(l->limiter, "warps")           ? "block size"
               : !strcmp(l->limiter, "shared_memory") ? "shared memory"
                                                      : l->limiter);
    printf("\n");
    if (!c->has_launch)
        return;
    printf("  %-14s  grid %" PRIu64 " x %" PRIu64 " x %" PRIu64 ", block %" PRIu64 " x %" PRIu64 " x %" PRIu64
           ", %" PRIu64 " registers, ",
           "launch", l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->registers);
    if (l->local_bytes)
        printf("%" PRIu64 " bytes of local memory (spills)\n", l->local_bytes);
    else
        printf("no spills\n");
}

/* Returns the largest stall below `before`; NULL: there is none. */
static const struct kops_figure *next_stall(const struct kops_counters *c, double before)
{
    const struct kops_figure *next = NULL;

    for (const struct kops_figure *stall = c->stalls; stall < c->stalls + c->n_stalls; stall++)
        if (strcmp(stall->name, "selected") != 0 && strcmp(stall->name, "not_selected") != 0 && stall->value > 0 &&
            stall->value < before && (!next || stall->value > next->value))
            next = stall;
    return next;
}

static void print_stalls(const struct kops_counters *c)
{
    const struct kops_figure *stall = next_stall(c, (double)INFINITY);

    printf("  %-14s  ", "warps wait for");
    if (!stall)
        printf("-");
    for (unsigned i = 0; stall && i < STALLS_SHOWN; i++, stall = next_stall(c, stall->value))
        printf("%s%s %.0f %%", i ? ", " : "", stall->name, stall->value);
    printf("\n");
}

static void counters_print(const struct kops_counters *c)
{
    const double conflicts = find(c, "bank_conflicts"), wavefronts = find(c, "shared_wavefronts");

    printf("%s is bound by %s", *c->kernel ? c->kernel : "the kernel", c->verdict);
    if (c->kernels > 1)
        printf(", the longest of %" PRIu64 " kernels", c->kernels);
    printf(": %s\n", c->why);
    printf("  %-14s  %.2f us, %" PRIu64 " passes\n", "duration", find(c, "duration_us"), c->passes);
    print_percents(c);
    if (!isnan(conflicts) && wavefronts > 0)
        printf("  %-14s  %.0f of %.0f accesses of shared memory\n", "bank conflicts", conflicts, wavefronts);
    print_launch(c);
    print_stalls(c);
    if (c->others > 0)
        printf("  %-14s  %" PRId64 " other processes have the GPU: figures of L2 and DRAM may be theirs, too\n",
               "beware", c->others);
}

static void json_figures(const char *key, const struct kops_figure *figures, size_t n)
{
    json_begin(key, '{');
    for (size_t i = 0; i < n; i++)
        json_number(figures[i].name, figures[i].value);
    json_end('}');
}

#define F(member) JSON_FIELD(struct kops_counters, member)
static const struct json_field counters_fields[] = {
    F(verdict), F(why),          F(kernel),
    F(device),  F(variant),      F(kernels),
    F(passes),  F(copied_bytes), JSON_IF_KNOWN(struct kops_counters, others),
    JSON_END};
#undef F

#define F(member) JSON_FIELD(struct kops_counter_launch, member)
static const struct json_field launch_fields[] = {F(registers),     F(static_shared), F(dynamic_shared), F(local_bytes),
                                                  F(occupancy_pct), F(limiter),       JSON_END};
#undef F

static void counters_json(const struct kops_counters *c)
{
    json_begin(NULL, '{');
    json_fields(counters_fields, c);
    json_figures("values", c->values, c->n_values);
    json_figures("stalls", c->stalls, c->n_stalls);
    if (c->has_launch)
        JSON_MAP("launch", json_ints("grid", (const int64_t *)c->launch.grid, 3),
                 json_ints("block", (const int64_t *)c->launch.block, 3), json_fields(launch_fields, &c->launch));
    json_end('}');
}

enum ctl_exit counters_show(const struct ctl *ctl, const char *what, enum kops_code code, struct kops_counters *c,
                            const struct kops_error *error)
{
    if (code)
        return ctl_failed(what, error);
    if (ctl->json)
        counters_json(c);
    else
        counters_print(c);
    kops_counters_free(c);
    return CTL_OK;
}

/* ---- connections, users, devices, executors ---- */

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
