/* The results of hello and stats as plain structs, in an arena of their own. */
#include <msgpack.h>

#include "wire.h"
#include "wire_get.h"
#include "wire_list.h"

/* ---- hello ---- */

static const void *read_device(struct arena *a, const msgpack_object *o)
{
    struct kops_device *d = arena_new(a, sizeof(*d));

    if (!d)
        return NULL;
    d->index = (unsigned)uint_or_zero(map_find(o, "index"));
    d->name = get_text(a, map_find(o, "name"));
    d->uuid = get_text(a, map_find(o, "uuid"));
    d->backend = get_text(a, map_find(o, "backend"));
    d->arch = get_text(a, map_find(o, "arch"));
    d->memory_bytes = uint_or_zero(map_find(o, "memory_bytes"));
    d->compute_units = (unsigned)uint_or_zero(map_find(o, "compute_units"));
    d->is_default = get_bool(map_find(o, "default"));
    d->mps = get_bool(map_find(o, "mps"));
    return d->name && d->uuid && d->backend && d->arch ? d : NULL;
}

static bool read_fallback(struct arena *a, const msgpack_object *type, const msgpack_object *value,
                          struct kops_attr *ret)
{
    double number;

    if (!type || type->type != MSGPACK_OBJECT_STR)
        return true;
    if (text_is(type, "bool", 4)) {
        ret->type = KOPS_ATTR_BOOL;
        ret->value.boolean = get_bool(value);
    } else if (text_is(type, "float", 5)) {
        ret->type = KOPS_ATTR_FLOAT;
        ret->value.real = get_number(value, &number) ? number : 0;
    } else if (text_is(type, "int", 3)) {
        ret->type = KOPS_ATTR_INT;
        ret->value.integer =
            value && value->type == MSGPACK_OBJECT_NEGATIVE_INTEGER ? value->via.i64 : (int64_t)uint_or_zero(value);
    } else {
        ret->type = KOPS_ATTR_TEXT;
        ret->value.text = get_text(a, value);
        return ret->value.text != NULL;
    }
    return true;
}

static const void *read_attr(struct arena *a, const msgpack_object *o)
{
    struct kops_op_attr *attr = arena_new(a, sizeof(*attr));
    const msgpack_object *choices = map_find(o, "choices");

    if (!attr || !read_fallback(a, map_find(o, "type"), map_find(o, "default"), &attr->fallback))
        return NULL;
    attr->name = attr->fallback.name = get_text(a, map_find(o, "name"));
    attr->doc = get_text(a, map_find(o, "doc"));
    if (choices && !(attr->choices = get_texts(a, choices)))
        return NULL;
    return attr->name && attr->doc ? attr : NULL;
}

/* {device uuid: [name]} */
static const struct kops_op_variants *const *read_variants(struct arena *a, const msgpack_object *o)
{
    size_t n = o && o->type == MSGPACK_OBJECT_MAP ? o->via.map.size : 0;
    const struct kops_op_variants **list = arena_new(a, (n + 1) * sizeof(*list));

    for (size_t i = 0; list && i < n; i++) {
        struct kops_op_variants *v = arena_new(a, sizeof(*v));

        if (!v || !(v->device = get_text(a, &o->via.map.ptr[i].key)) ||
            !(v->names = get_texts(a, &o->via.map.ptr[i].val)))
            return NULL;
        list[i] = v;
    }
    return list;
}

static const void *read_op(struct arena *a, const msgpack_object *o)
{
    struct kops_op *op = arena_new(a, sizeof(*op));

    if (!op)
        return NULL;
    op->name = get_text(a, map_find(o, "name"));
    op->summary = get_text(a, map_find(o, "summary"));
    op->doc = get_text(a, map_find(o, "doc"));
    op->inputs = get_texts(a, map_find(o, "inputs"));
    op->outputs = get_texts(a, map_find(o, "outputs"));
    op->dtypes = get_texts(a, map_find(o, "dtypes"));
    op->attrs = get_list(a, map_find(o, "attrs"), read_attr);
    op->variants = read_variants(a, map_find(o, "variants"));
    return op->name && op->summary && op->doc && op->inputs && op->outputs && op->dtypes && op->attrs && op->variants
               ? op
               : NULL;
}

static void read_limits(const msgpack_object *o, struct kops_limits *ret)
{
    ret->message_bytes = uint_or_zero(map_find(o, "message_bytes"));
    ret->depth = uint_or_zero(map_find(o, "depth"));
    ret->nfds = uint_or_zero(map_find(o, "nfds"));
    ret->inflight = uint_or_zero(map_find(o, "inflight"));
    ret->buffers = uint_or_zero(map_find(o, "buffers"));
    ret->streams = uint_or_zero(map_find(o, "streams"));
    ret->rank = uint_or_zero(map_find(o, "rank"));
    ret->repeat = uint_or_zero(map_find(o, "repeat"));
    ret->warmup = uint_or_zero(map_find(o, "warmup"));
    ret->inline_mappings = uint_or_zero(map_find(o, "inline_mappings"));
    ret->sequence_ops = uint_or_zero(map_find(o, "sequence_ops"));
    ret->spin_us = uint_or_zero(map_find(o, "spin_us"));
    ret->source_bytes = uint_or_zero(map_find(o, "source_bytes"));
}

/* False: no memory. */
static bool read_kernels(struct arena *a, const msgpack_object *o, const struct kops_kernels_info **ret)
{
    const msgpack_object *compiler = map_find(o, "compiler");
    struct kops_kernels_info *k;

    if (!o)
        return true;
    k = arena_new(a, sizeof(*k));
    if (!k)
        return false;
    k->compiler = compiler ? get_text(a, compiler) : NULL;
    k->policy = get_text(a, map_find(o, "policy"));
    k->allowed = get_bool(map_find(o, "allowed"));
    k->arch = get_texts(a, map_find(o, "arch"));
    *ret = k;
    return k->policy && k->arch && (k->compiler || !compiler);
}

bool wire_decode_limits(const struct msgpack_object *result, int *fds, unsigned nfds, void *into)
{
    (void)fds;
    (void)nfds;
    read_limits(map_find(result, "limits"), into);
    return true;
}

bool wire_decode_info(const struct msgpack_object *result, int *fds, unsigned nfds, void *into)
{
    struct wire_info *w = into;
    struct kops_info *info = &w->info;
    uint64_t pid, protocol;

    (void)fds;
    (void)nfds;
    if (!get_uint(map_find(result, "pid"), &pid) || !get_uint(map_find(result, "protocol"), &protocol))
        return false;
    info->pid = (int64_t)pid;
    info->protocol = (unsigned)protocol;
    info->protocol_min = (unsigned)uint_or_zero(map_find(result, "protocol_min"));
    info->server = get_text(&w->arena, map_find(result, "server"));
    info->instance = get_text(&w->arena, map_find(result, "instance"));
    info->devices = get_list(&w->arena, map_find(result, "devices"), read_device);
    info->ops = get_list(&w->arena, map_find(result, "ops"), read_op);
    info->features = get_texts(&w->arena, map_find(result, "features"));
    read_limits(map_find(result, "limits"), &info->limits);
    return info->server && info->instance && info->devices && info->ops && info->features &&
           read_kernels(&w->arena, map_find(result, "kernels"), &info->kernels);
}

/* ---- stats ---- */

static void read_spread(const msgpack_object *o, struct kops_spread *ret)
{
    ret->min = number_or_nan(map_find(o, "min"));
    ret->mean = number_or_nan(map_find(o, "mean"));
    ret->p50 = number_or_nan(map_find(o, "p50"));
    ret->p90 = number_or_nan(map_find(o, "p90"));
    ret->p99 = number_or_nan(map_find(o, "p99"));
    ret->p999 = number_or_nan(map_find(o, "p999"));
    ret->max = number_or_nan(map_find(o, "max"));
}

static bool read_shapes(struct arena *a, const msgpack_object *o, struct kops_stats_row *row)
{
    size_t n = list_size(o);
    struct kops_shape *shapes = arena_new(a, (n + 1) * sizeof(*shapes));

    for (size_t i = 0; shapes && i < n; i++) {
        const msgpack_object *shape = &o->via.array.ptr[i];
        size_t rank = list_size(shape);

        shapes[i].rank = rank < KOPS_MAX_RANK ? (unsigned)rank : KOPS_MAX_RANK;
        for (unsigned d = 0; d < shapes[i].rank; d++)
            shapes[i].dims[d] = (int64_t)uint_or_zero(&shape->via.array.ptr[d]);
    }
    row->shapes = shapes;
    row->n_shapes = n;
    return shapes != NULL;
}

static const void *read_row(struct arena *a, const msgpack_object *o)
{
    struct kops_stats_row *row = arena_new(a, sizeof(*row));

    if (!row || !read_shapes(a, map_find(o, "shapes"), row))
        return NULL;
    row->op = get_text(a, map_find(o, "op"));
    row->device = get_text(a, map_find(o, "device"));
    row->variant = get_text(a, map_find(o, "variant"));
    row->dtype = get_text(a, map_find(o, "dtype"));
    row->count = uint_or_zero(map_find(o, "count"));
    row->errors = uint_or_zero(map_find(o, "errors"));
    read_spread(map_find(o, "queue_us"), &row->queue_us);
    read_spread(map_find(o, "exec_us"), &row->exec_us);
    read_spread(map_find(o, "total_us"), &row->total_us);
    return row->op && row->device && row->variant && row->dtype ? row : NULL;
}

static const void *read_mapping(struct arena *a, const msgpack_object *o)
{
    struct kops_mapping *m = arena_new(a, sizeof(*m));
    const msgpack_object *device = map_find(o, "device"), *pids = map_find(o, "pids");
    size_t n = list_size(pids);
    int64_t *list = arena_new(a, (n + 1) * sizeof(*list));

    if (!m || !list)
        return NULL;
    m->kind = get_text(a, map_find(o, "kind"));
    m->device = device ? get_text(a, device) : NULL;
    m->size = uint_or_zero(map_find(o, "size"));
    m->users = uint_or_zero(map_find(o, "users"));
    m->open = get_bool(map_find(o, "open"));
    m->idle_s = number_or_nan(map_find(o, "idle_s"));
    m->pids = list;
    m->n_pids = n;
    for (size_t i = 0; i < n; i++)
        list[i] = (int64_t)uint_or_zero(&pids->via.array.ptr[i]);
    return m->kind && (m->device || !device) ? m : NULL;
}

static const struct kops_counter *const *read_counters(struct arena *a, const msgpack_object *o)
{
    size_t n = o && o->type == MSGPACK_OBJECT_MAP ? o->via.map.size : 0;
    const struct kops_counter **list = arena_new(a, (n + 1) * sizeof(*list));

    for (size_t i = 0; list && i < n; i++) {
        struct kops_counter *c = arena_new(a, sizeof(*c));

        if (!c || !(c->name = get_text(a, &o->via.map.ptr[i].key)))
            return NULL;
        c->value = uint_or_zero(&o->via.map.ptr[i].val);
        list[i] = c;
    }
    return list;
}

bool wire_decode_stats(const struct msgpack_object *result, int *fds, unsigned nfds, void *into)
{
    struct wire_stats *w = into;

    (void)fds;
    (void)nfds;
    w->stats.uptime_s = number_or_nan(map_find(result, "uptime_s"));
    w->stats.counters = read_counters(&w->arena, map_find(result, "counters"));
    w->stats.rows = get_list(&w->arena, map_find(result, "ops"), read_row);
    w->stats.mappings = get_list(&w->arena, map_find(result, "mappings"), read_mapping);
    w->stats.kernels = read_counters(&w->arena, map_find(result, "kernels"));
    return w->stats.counters && w->stats.rows && w->stats.mappings && w->stats.kernels;
}
