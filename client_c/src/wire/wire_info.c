/* The results of hello and stats as plain structs, in an arena of their own. */

#include "wire.h"
#include "wire_read.h"

/* ---- hello ---- */

static const struct wire_field device_fields[] = {
    WIRE_FIELD(struct kops_device, UINT, "index", index),
    WIRE_FIELD(struct kops_device, TEXT, "name", name),
    WIRE_FIELD(struct kops_device, TEXT, "uuid", uuid),
    WIRE_FIELD(struct kops_device, TEXT, "backend", backend),
    WIRE_FIELD(struct kops_device, TEXT, "arch", arch),
    WIRE_FIELD(struct kops_device, U64, "memory_bytes", memory_bytes),
    WIRE_FIELD(struct kops_device, UINT, "compute_units", compute_units),
    WIRE_FIELD(struct kops_device, BOOL, "default", is_default),
    WIRE_FIELD(struct kops_device, BOOL, "mps", mps),
};
static const struct wire_record device_record = WIRE_RECORD(struct kops_device, device_fields);

/* An attribute as it comes: its default is read by its type, whichever comes first. */
struct raw_attr {
    struct kops_op_attr attr;
    const unsigned char *type, *fallback, *choices;
};

static const struct wire_field attr_fields[] = {
    WIRE_FIELD(struct raw_attr, TEXT, "name", attr.name),    WIRE_FIELD(struct raw_attr, VALUE, "type", type),
    WIRE_FIELD(struct raw_attr, VALUE, "default", fallback), WIRE_FIELD(struct raw_attr, VALUE, "choices", choices),
    WIRE_FIELD(struct raw_attr, TEXT, "doc", attr.doc),
};
static const struct wire_record attr_record = WIRE_RECORD(struct raw_attr, attr_fields);

static int64_t get_int(const unsigned char *value)
{
    struct codec_item item = {.u = 0};

    if (value)
        codec_read(value, &item);
    return value && (item.type == CODEC_UINT || item.type == CODEC_NEGATIVE) ? item.i : 0;
}

static bool read_fallback(struct arena *a, const unsigned char *type, const unsigned char *value, struct kops_attr *ret)
{
    struct codec_item item;

    if (!type || codec_type_of(type) != CODEC_STR)
        return true;
    if (wire_text_is(type, "bool")) {
        ret->type = KOPS_ATTR_BOOL;
        if (value && codec_type_of(value) == CODEC_BOOL) {
            codec_read(value, &item);
            ret->value.boolean = item.b;
        }
    } else if (wire_text_is(type, "float")) {
        ret->type = KOPS_ATTR_FLOAT;
        wire_get_number(value, &ret->value.real);
    } else if (wire_text_is(type, "int")) {
        ret->type = KOPS_ATTR_INT;
        ret->value.integer = get_int(value);
    } else {
        ret->type = KOPS_ATTR_TEXT;
        ret->value.text = wire_get_text(a, value);
        return ret->value.text != NULL;
    }
    return true;
}

static bool read_attr(struct arena *a, const unsigned char *value, struct kops_op_attr *ret)
{
    struct raw_attr raw = {.type = NULL};

    if (!wire_read(a, value, &attr_record, &raw) || !read_fallback(a, raw.type, raw.fallback, &raw.attr.fallback) ||
        (raw.choices && !(raw.attr.choices = wire_get_texts(a, raw.choices))))
        return false;
    raw.attr.fallback.name = raw.attr.name;
    *ret = raw.attr;
    return true;
}

static bool read_attrs(struct arena *a, const unsigned char *value, void *into)
{
    const uint32_t n = wire_elements(value, &value);
    const struct kops_op_attr **list = arena_new(a, ((size_t)n + 1) * sizeof(*list));

    for (uint32_t i = 0; list && i < n; i++, value = codec_skip(value)) {
        struct kops_op_attr *attr = arena_new(a, sizeof(*attr));

        if (!attr || !read_attr(a, value, attr))
            return false;
        list[i] = attr;
    }
    *(const struct kops_op_attr *const **)into = list;
    return list != NULL;
}

/* {device uuid: [name]} */
static bool read_variants(struct arena *a, const unsigned char *value, void *into)
{
    const uint32_t n = wire_pairs(value, &value);
    const struct kops_op_variants **list = arena_new(a, ((size_t)n + 1) * sizeof(*list));

    for (uint32_t i = 0; list && i < n; i++, value = codec_skip(value)) {
        struct kops_op_variants *v = arena_new(a, sizeof(*v));

        if (!v || !(v->device = wire_get_text(a, value)))
            return false;
        value = codec_skip(value);
        if (!(v->names = wire_get_texts(a, value)))
            return false;
        list[i] = v;
    }
    *(const struct kops_op_variants *const **)into = list;
    return list != NULL;
}

/* {dtype: [dtype]} */
static bool read_out_dtypes(struct arena *a, const unsigned char *value, void *into)
{
    const uint32_t n = wire_pairs(value, &value);
    const struct kops_op_out_dtypes **list = arena_new(a, ((size_t)n + 1) * sizeof(*list));

    for (uint32_t i = 0; list && i < n; i++, value = codec_skip(value)) {
        struct kops_op_out_dtypes *d = arena_new(a, sizeof(*d));

        if (!d || !(d->dtype = wire_get_text(a, value)))
            return false;
        value = codec_skip(value);
        if (!(d->names = wire_get_texts(a, value)))
            return false;
        list[i] = d;
    }
    *(const struct kops_op_out_dtypes *const **)into = list;
    return list != NULL;
}

/* {input: [dtype]} */
static bool read_in_dtypes(struct arena *a, const unsigned char *value, void *into)
{
    const uint32_t n = wire_pairs(value, &value);
    const struct kops_op_in_dtypes **list = arena_new(a, ((size_t)n + 1) * sizeof(*list));

    for (uint32_t i = 0; list && i < n; i++, value = codec_skip(value)) {
        struct kops_op_in_dtypes *d = arena_new(a, sizeof(*d));

        if (!d || !(d->input = wire_get_text(a, value)))
            return false;
        value = codec_skip(value);
        if (!(d->names = wire_get_texts(a, value)))
            return false;
        list[i] = d;
    }
    *(const struct kops_op_in_dtypes *const **)into = list;
    return list != NULL;
}

static const struct wire_field op_fields[] = {
    WIRE_FIELD(struct kops_op, TEXT, "name", name),
    WIRE_FIELD(struct kops_op, TEXT, "summary", summary),
    WIRE_FIELD(struct kops_op, TEXT, "doc", doc),
    WIRE_FIELD(struct kops_op, TEXTS, "inputs", inputs),
    WIRE_FIELD(struct kops_op, TEXTS, "outputs", outputs),
    WIRE_FIELD(struct kops_op, TEXTS, "dtypes", dtypes),
    WIRE_READ(struct kops_op, "out_dtypes", out_dtypes, read_out_dtypes),
    WIRE_READ(struct kops_op, "in_dtypes", in_dtypes, read_in_dtypes),
    WIRE_READ(struct kops_op, "attrs", attrs, read_attrs),
    WIRE_READ(struct kops_op, "variants", variants, read_variants),
};
static const struct wire_record op_record = WIRE_RECORD(struct kops_op, op_fields);

static const struct wire_field limit_fields[] = {
    WIRE_FIELD(struct kops_limits, U64, "message_bytes", message_bytes),
    WIRE_FIELD(struct kops_limits, U64, "depth", depth),
    WIRE_FIELD(struct kops_limits, U64, "nfds", nfds),
    WIRE_FIELD(struct kops_limits, U64, "inflight", inflight),
    WIRE_FIELD(struct kops_limits, U64, "buffers", buffers),
    WIRE_FIELD(struct kops_limits, U64, "streams", streams),
    WIRE_FIELD(struct kops_limits, U64, "rank", rank),
    WIRE_FIELD(struct kops_limits, U64, "repeat", repeat),
    WIRE_FIELD(struct kops_limits, U64, "warmup", warmup),
    WIRE_FIELD(struct kops_limits, U64, "inline_mappings", inline_mappings),
    WIRE_FIELD(struct kops_limits, U64, "sequence_ops", sequence_ops),
    WIRE_FIELD(struct kops_limits, U64, "spin_us", spin_us),
    WIRE_FIELD(struct kops_limits, U64, "source_bytes", source_bytes),
};
static const struct wire_record limit_record = WIRE_RECORD(struct kops_limits, limit_fields);

static const struct wire_field kernels_fields[] = {
    WIRE_FIELD(struct kops_kernels_info, OPTIONAL_TEXT, "compiler", compiler),
    WIRE_FIELD(struct kops_kernels_info, OPTIONAL_TEXT, "compiler_why", compiler_why),
    WIRE_FIELD(struct kops_kernels_info, TEXT, "policy", policy),
    WIRE_FIELD(struct kops_kernels_info, BOOL, "allowed", allowed),
    WIRE_FIELD(struct kops_kernels_info, TEXTS, "arch", arch),
    WIRE_FIELD(struct kops_kernels_info, TEXTS, "include_extra", include_extra),
    WIRE_FIELD(struct kops_kernels_info, OPTIONAL_TEXT, "remote", remote),
    WIRE_FIELD(struct kops_kernels_info, OPTIONAL_TEXT, "remote_why", remote_why),
};
static const struct wire_record kernels_record = WIRE_RECORD(struct kops_kernels_info, kernels_fields);

/* NULL where the daemon says nothing of kernels. */
static bool read_kernels(struct arena *a, const unsigned char *value, void *into)
{
    struct kops_kernels_info *kernels = value ? arena_new(a, sizeof(*kernels)) : NULL;

    *(const struct kops_kernels_info **)into = kernels;
    if (value && (!kernels || !wire_read(a, value, &kernels_record, kernels)))
        return false;
    if (kernels && kernels->compiler && !*kernels->compiler)
        kernels->compiler = NULL;
    return true;
}

static const struct wire_field info_fields[] = {
    WIRE_FIELD(struct kops_info, TEXT, "server", server),
    WIRE_FIELD(struct kops_info, TEXT, "instance", instance),
    WIRE_NEEDED(struct kops_info, UINT, "protocol", protocol),
    WIRE_FIELD(struct kops_info, UINT, "protocol_min", protocol_min),
    WIRE_NEEDED(struct kops_info, I64, "pid", pid),
    WIRE_NESTED(struct kops_info, LIST, "devices", devices, device_record),
    WIRE_NESTED(struct kops_info, LIST, "ops", ops, op_record),
    WIRE_NESTED(struct kops_info, MAP, "limits", limits, limit_record),
    WIRE_FIELD(struct kops_info, TEXTS, "features", features),
    WIRE_READ(struct kops_info, "kernels", kernels, read_kernels),
    WIRE_FIELD(struct kops_info, TEXT, "isolation", isolation),
    WIRE_FIELD(struct kops_info, TEXT, "identity", identity),
};
static const struct wire_record info_record = WIRE_RECORD(struct kops_info, info_fields);

bool wire_decode_info(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    struct wire_info *w = into;

    (void)fds;
    (void)nfds;
    return wire_read(&w->arena, result, &info_record, &w->info);
}

bool wire_decode_greeting(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    static const struct wire_field fields[] = {{WIRE_KEY("limits"), .type = WIRE_MAP, .record = &limit_record}};
    static const struct wire_record record = WIRE_RECORD(struct kops_limits, fields);
    const struct wire_greeting *g = into;

    g->kept->length = 0;
    if (!bytes_append(g->kept, result, (size_t)(codec_skip(result) - result)))
        return false;
    return g->limits ? wire_read(NULL, result, &record, g->limits) : wire_decode_info(result, fds, nfds, g->info);
}

/* ---- stats ---- */

static const struct wire_field spread_fields[] = {
    WIRE_FIELD(struct kops_spread, F64, "min", min), WIRE_FIELD(struct kops_spread, F64, "mean", mean),
    WIRE_FIELD(struct kops_spread, F64, "p50", p50), WIRE_FIELD(struct kops_spread, F64, "p90", p90),
    WIRE_FIELD(struct kops_spread, F64, "p99", p99), WIRE_FIELD(struct kops_spread, F64, "p999", p999),
    WIRE_FIELD(struct kops_spread, F64, "max", max),
};
static const struct wire_record spread_record = WIRE_RECORD(struct kops_spread, spread_fields);

static bool read_shapes(struct arena *a, const unsigned char *value, void *into)
{
    struct kops_stats_row *row = into;

    row->shapes = wire_get_shapes(a, value, &row->n_shapes);
    return row->shapes != NULL;
}

static const struct wire_field row_fields[] = {
    WIRE_FIELD(struct kops_stats_row, TEXT, "op", op),
    WIRE_FIELD(struct kops_stats_row, TEXT, "device", device),
    WIRE_FIELD(struct kops_stats_row, TEXT, "variant", variant),
    WIRE_FIELD(struct kops_stats_row, TEXT, "dtype", dtype),
    {WIRE_KEY("shapes"), .type = WIRE_OTHER, .read = read_shapes}, /* two members of the row */
    WIRE_FIELD(struct kops_stats_row, U64, "count", count),
    WIRE_FIELD(struct kops_stats_row, U64, "errors", errors),
    WIRE_NESTED(struct kops_stats_row, MAP, "queue_us", queue_us, spread_record),
    WIRE_NESTED(struct kops_stats_row, MAP, "exec_us", exec_us, spread_record),
    WIRE_NESTED(struct kops_stats_row, MAP, "total_us", total_us, spread_record),
    WIRE_FIELD(struct kops_stats_row, ID, "uid", uid),
    WIRE_FIELD(struct kops_stats_row, TEXT, "identity", identity),
    WIRE_FIELD(struct kops_stats_row, ID, "bytes", bytes),
    WIRE_FIELD(struct kops_stats_row, ID, "operations", operations),
};
static const struct wire_record row_record = WIRE_RECORD(struct kops_stats_row, row_fields);

static bool read_pids(struct arena *a, const unsigned char *value, void *into)
{
    struct kops_mapping *m = into;
    const uint32_t n = wire_elements(value, &value);
    int64_t *pids = arena_new(a, ((size_t)n + 1) * sizeof(*pids));

    for (uint32_t i = 0; pids && i < n; i++, value = codec_skip(value)) {
        uint64_t pid = 0;

        wire_get_uint(value, &pid);
        pids[i] = (int64_t)pid;
    }
    m->pids = pids;
    m->n_pids = n;
    return pids != NULL;
}

static const struct wire_field mapping_fields[] = {
    WIRE_FIELD(struct kops_mapping, TEXT, "kind", kind),
    WIRE_FIELD(struct kops_mapping, OPTIONAL_TEXT, "device", device),
    WIRE_FIELD(struct kops_mapping, U64, "size", size),
    WIRE_FIELD(struct kops_mapping, U64, "users", users),
    WIRE_FIELD(struct kops_mapping, BOOL, "open", open),
    WIRE_FIELD(struct kops_mapping, F64, "idle_s", idle_s),
    {WIRE_KEY("pids"), .type = WIRE_OTHER, .read = read_pids}, /* two members of the mapping */
};
static const struct wire_record mapping_record = WIRE_RECORD(struct kops_mapping, mapping_fields);

static const struct wire_field executor_fields[] = {
    WIRE_FIELD(struct kops_executor, I64, "pid", pid),
    WIRE_FIELD(struct kops_executor, TEXT, "state", state),
    WIRE_FIELD(struct kops_executor, OPTIONAL_TEXT, "domain", domain),
    WIRE_FIELD(struct kops_executor, ID, "uid", uid),
    WIRE_FIELD(struct kops_executor, TEXT, "identity", identity),
    WIRE_FIELD(struct kops_executor, U64, "connection", connection),
    WIRE_FIELD(struct kops_executor, I64, "client_pid", client_pid),
    WIRE_FIELD(struct kops_executor, U64, "jobs", jobs),
    WIRE_FIELD(struct kops_executor, F64, "uptime_s", uptime_s),
    WIRE_FIELD(struct kops_executor, F64, "device_us", device_us),
};
static const struct wire_record executor_record = WIRE_RECORD(struct kops_executor, executor_fields);

/* {name: uint} */
static bool read_counters(struct arena *a, const unsigned char *value, void *into)
{
    const uint32_t n = wire_pairs(value, &value);
    const struct kops_counter **list = arena_new(a, ((size_t)n + 1) * sizeof(*list));

    for (uint32_t i = 0; list && i < n; i++, value = codec_skip(value)) {
        struct kops_counter *c = arena_new(a, sizeof(*c));

        if (!c || !(c->name = wire_get_text(a, value)))
            return false;
        value = codec_skip(value);
        wire_get_uint(value, &c->value);
        list[i] = c;
    }
    *(const struct kops_counter *const **)into = list;
    return list != NULL;
}

static const struct wire_field stats_fields[] = {
    WIRE_FIELD(struct kops_stats, F64, "uptime_s", uptime_s),
    WIRE_READ(struct kops_stats, "counters", counters, read_counters),
    WIRE_NESTED(struct kops_stats, LIST, "ops", rows, row_record),
    WIRE_NESTED(struct kops_stats, LIST, "mappings", mappings, mapping_record),
    WIRE_READ(struct kops_stats, "kernels", kernels, read_counters),
    WIRE_NESTED(struct kops_stats, LIST, "executors", executors, executor_record),
    WIRE_READ(struct kops_stats, "executor_counts", executor_counts, read_counters),
};
static const struct wire_record stats_record = WIRE_RECORD(struct kops_stats, stats_fields);

bool wire_decode_stats(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    struct wire_stats *w = into;

    (void)fds;
    (void)nfds;
    return wire_read(&w->arena, result, &stats_record, &w->stats);
}
