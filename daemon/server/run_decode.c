/* From a run request's arguments to a job: tensors, attributes, device, every check. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/connection.h"
#include "server/request.h"
#include "server/run.h"

enum { PATH_MAX_LENGTH = 24 };

#define FIELD(key_, type_, required_, min_, max_, default_)                                                            \
    {.key = #key_, .type = RPC_##type_, .required = (required_), .min = (min_), .max = (max_), .fallback = (default_)},
static const struct rpc_field tensor_fields[] = {KOPS_PARAMS_TENSOR(FIELD)};
#undef FIELD
enum { N_TENSOR_FIELDS = sizeof(tensor_fields) / sizeof(tensor_fields[0]) };

static int fail(struct error *e, enum error_code code, const char *path, const char *key, const char *why)
{
    char full[96];

    snprintf(full, sizeof(full), "%s%s", path, key);
    error_set(e, code, "%s: %s", full, why);
    return error_detail_text(e, "key", full);
}

/* ---- tensors ---- */

static int decode_dimensions(const struct rpc_arg *list, const char *key, const char *path, int64_t *into,
                             struct error *e)
{
    const struct rpc_field item = {.key = key, .type = RPC_INT};
    struct rpc_arg arg;

    for (uint32_t i = 0; i < list->length; i++) {
        if (rpc_decode_value(rpc_list_item(list->items, i), &item, path, &arg, e) < 0)
            return -1;
        if (arg.i < 0) {
            fail(e, ERROR_OUT_OF_RANGE, path, key, "must not be negative; copy the tensor to get rid of them");
            error_detail_number(e, "min", 0);
            return error_detail_number(e, "max", INT64_MAX);
        }
        into[i] = arg.i;
    }
    return 0;
}

static int decode_dtype(const struct rpc_arg *name, const char *path, enum dtype *ret, struct error *e)
{
#define X(NAME, text, value, size)                                                                                     \
    if (rpc_text_is(name, text)) {                                                                                     \
        *ret = DTYPE_##NAME;                                                                                           \
        return 0;                                                                                                      \
    }
    KOPS_DTYPES(X)
#undef X
    return fail(e, ERROR_UNKNOWN_DTYPE, path, "dtype", "no such dtype; hello lists what each op takes");
}

static int decode_layout(const struct rpc_arg *args, const char *name, const char *path, struct tensor *t,
                         struct error *e)
{
    if (decode_dtype(&args[TENSOR_dtype], path, &t->dtype, e) < 0)
        return -1;
    if (args[TENSOR_shape].length > TENSOR_MAX_RANK) {
        fail(e, ERROR_LIMIT_EXCEEDED, path, "shape", "more dimensions than limits.rank");
        error_detail_number(e, "limit", TENSOR_MAX_RANK);
        return error_detail_number(e, "value", args[TENSOR_shape].length);
    }
    t->rank = args[TENSOR_shape].length;
    t->offset = args[TENSOR_offset].u;
    if (decode_dimensions(&args[TENSOR_shape], "shape", path, t->shape, e) < 0)
        return -1;
    if (!args[TENSOR_strides].present) {
        tensor_set_contiguous(t);
    } else {
        if (args[TENSOR_strides].length != t->rank)
            return fail(e, ERROR_INVALID_ARGUMENT, path, "strides", "needs as many entries as shape");
        if (decode_dimensions(&args[TENSOR_strides], "strides", path, t->strides, e) < 0)
            return -1;
    }
    return tensor_measure(t, name, e);
}

/* The mapping of an inline reference: this connection's own from before, or a new one in its care. */
static int resolve_inline(struct connection *c, const struct rpc_arg *args, const char *path,
                          struct operand_ref *operand, uint64_t *ret_size, struct error *e)
{
    struct backend_import import = {.kind = MEMORY_CUDA_IPC, .size = args[TENSOR_size].u, .writable = true};
    const struct mapping_owner owner = {.uid = c->uid, .pid = c->pid};
    struct backend_device *device;
    struct mapping *m = NULL;

    if (args[TENSOR_ipc].length != BACKEND_IPC_HANDLE_SIZE)
        return fail(e, ERROR_INVALID_ARGUMENT, path, "ipc", "must be the 64 bytes of cuIpcGetMemHandle");
    if (!args[TENSOR_size].present)
        return fail(e, ERROR_MISSING_KEY, path, "size", "required beside ipc");
    if (!args[TENSOR_device].present)
        return fail(e, ERROR_MISSING_KEY, path, "device", "required beside ipc");
    device = request_device(c->server, &args[TENSOR_device], e);
    if (!device)
        return fail(e, ERROR_UNKNOWN_DEVICE, path, "device", "this daemon serves no such device; hello lists its own");
    if (!device->backend->memory_import)
        return fail(e, ERROR_UNSUPPORTED, path, "device", "that device has no CUDA memory");
    memcpy(import.handle, args[TENSOR_ipc].text, sizeof(import.handle));
    *ret_size = import.size;
    if (args[TENSOR_alloc_id].present)
        m = connection_find_inline(c, device, import.handle, args[TENSOR_alloc_id].u);
    if (m) {
        mapping_use(m);
        operand->mapping = m;
        return 0;
    }
    if (mapping_get_ipc(&c->server->mappings, device, &import,
                        args[TENSOR_alloc_id].present ? &args[TENSOR_alloc_id].u : NULL, owner, &m, e) < 0) {
        error_detail_text(e, "key", path);
        return -1;
    }
    if (m->keyed)
        connection_add_inline(c, m);
    mapping_use(m);
    operand->mapping = m;
    mapping_unref(m);
    return 0;
}

static int resolve_buffer(struct connection *c, const struct rpc_arg *args, const char *path, bool output,
                          struct operand_ref *operand, uint64_t *ret_size, struct error *e)
{
    const struct buffer_ref *buffer = idtable_get(&c->buffers, args[TENSOR_buffer].u);

    if (!buffer)
        return fail(e, ERROR_UNKNOWN_BUFFER, path, "buffer", "this connection has no such buffer; register it first");
    if (output && !buffer->writable)
        return fail(e, ERROR_READ_ONLY, path, "buffer", "was registered with access \"r\", but is an output");
    if (buffer->mapping->stale)
        return fail(e, ERROR_STALE_BUFFER, path, "buffer",
                    "its allocation was freed and replaced by its owner; release it and register the new one");
    mapping_use(buffer->mapping);
    operand->mapping = buffer->mapping;
    *ret_size = buffer->size;
    return 0;
}

static int decode_tensor(struct request *r, unsigned i, const struct rpc_value *value, const char *path,
                         struct error *e)
{
    static const struct rpc_field as_map = {.key = "", .type = RPC_MAP};
    struct tensor *t = &r->run.call.tensors[i];
    struct operand_ref *operand = &r->run.operands[i];
    struct rpc_arg args[N_TENSOR_FIELDS], map;
    bool output = i >= r->run.call.op->n_inputs;
    char dotted[PATH_MAX_LENGTH + 1];
    uint64_t size = 0;

    if (rpc_decode_value(value, &as_map, path, &map, e) < 0)
        return -1;
    snprintf(dotted, sizeof(dotted), "%s.", path);
    if (rpc_decode_map(map.items, tensor_fields, N_TENSOR_FIELDS, dotted, args, e) < 0 ||
        decode_layout(args, path, dotted, t, e) < 0)
        return -1;
    if (args[TENSOR_buffer].present && args[TENSOR_ipc].present)
        return fail(e, ERROR_INVALID_ARGUMENT, dotted, "ipc", "give either buffer or ipc");
    if (args[TENSOR_ipc].present) {
        if (resolve_inline(r->connection, args, dotted, operand, &size, e) < 0)
            return -1;
    } else if (args[TENSOR_buffer].present) {
        if (resolve_buffer(r->connection, args, dotted, output, operand, &size, e) < 0)
            return -1;
    } else if (t->count) {
        return fail(e, ERROR_MISSING_KEY, dotted, "buffer", "required (or ipc) for a tensor that is not empty");
    } else {
        return 0;
    }
    return tensor_check_bounds(t, size, path, e);
}

static int decode_tensors(struct request *r, const struct rpc_arg *list, unsigned first, unsigned count,
                          const char *key, struct error *e)
{
    if (list->length != count) {
        error_set(e, list->length > count ? ERROR_LIMIT_EXCEEDED : ERROR_INVALID_ARGUMENT,
                  "%s: %s takes %u tensors there, not %u", key, r->run.call.op->name, count, list->length);
        error_detail_text(e, "key", key);
        error_detail_number(e, "limit", count);
        return error_detail_number(e, "value", list->length);
    }
    for (unsigned i = 0; i < count; i++) {
        char path[PATH_MAX_LENGTH];

        snprintf(path, sizeof(path), "%s[%u]", key, i);
        if (decode_tensor(r, first + i, rpc_list_item(list->items, i), path, e) < 0)
            return -1;
    }
    return 0;
}

/* ---- attributes ---- */

static int decode_attr(const struct op_attr *attr, const struct rpc_value *value, union op_attr_value *ret,
                       struct error *e)
{
    static const enum rpc_type types[] = {
        [OP_ATTR_BOOL] = RPC_BOOL, [OP_ATTR_FLOAT] = RPC_FLOAT, [OP_ATTR_INT] = RPC_INT, [OP_ATTR_CHOICE] = RPC_STR};
    const struct rpc_field field = {.key = attr->name, .type = types[attr->type]};
    struct rpc_arg arg;

    if (rpc_decode_value(value, &field, "attrs.", &arg, e) < 0)
        return -1;
    switch (attr->type) {
    case OP_ATTR_BOOL:
        ret->b = arg.b;
        return 0;
    case OP_ATTR_FLOAT:
        ret->f = arg.f;
        return 0;
    case OP_ATTR_INT:
        ret->i = arg.i;
        return 0;
    case OP_ATTR_CHOICE:
        for (unsigned i = 0; attr->choices[i]; i++)
            if (rpc_text_is(&arg, attr->choices[i])) {
                ret->choice = i;
                return 0;
            }
    }
    return fail(e, ERROR_INVALID_ARGUMENT, "attrs.", attr->name, "not one of the choices that hello lists");
}

static int decode_attrs(struct request *r, const struct rpc_value *map, struct rpc_arg *ret_variant, struct error *e)
{
    const struct op *op = r->run.call.op;
    unsigned seen = 0;

    for (unsigned i = 0; i < op->n_attrs; i++)
        r->run.call.attrs[i] = op->attrs[i].fallback;
    for (uint32_t i = 0; map && i < rpc_map_size(map); i++) {
        static const struct rpc_field variant = {.key = "variant", .type = RPC_STR};
        const struct rpc_value *value;
        struct rpc_arg name = {0};
        char shown[ERROR_DETAIL_TEXT_MAX];
        unsigned j = 0;

        if (rpc_map_entry(map, i, &name.text, &name.length, &value) < 0)
            return fail(e, ERROR_WRONG_TYPE, "attrs.", "(key)", "keys must be str");
        if (rpc_text_is(&name, "variant")) {
            if (ret_variant->present)
                return fail(e, ERROR_UNKNOWN_KEY, "attrs.", "variant", "given twice");
            if (rpc_decode_value(value, &variant, "attrs.", ret_variant, e) < 0)
                return -1;
            continue;
        }
        while (j < op->n_attrs && !rpc_text_is(&name, op->attrs[j].name))
            j++;
        if (j == op->n_attrs || (seen & 1U << j)) {
            unsigned n = 0;

            for (; n < name.length && n < 32; n++)
                shown[n] = name.text[n] >= 0x20 && name.text[n] < 0x7f ? name.text[n] : '?';
            shown[n] = '\0';
            return fail(e, ERROR_UNKNOWN_KEY, "attrs.", shown,
                        j == op->n_attrs ? "this op has no such attribute" : "given twice");
        }
        seen |= 1U << j;
        if (decode_attr(&op->attrs[j], value, &r->run.call.attrs[j], e) < 0)
            return -1;
    }
    return 0;
}

static int choose_variant(struct request *r, const struct rpc_arg *variant, struct error *e)
{
    struct backend_device *d = r->run.device;
    const char *const *names = d->backend->variants(d, r->run.call.op, r->run.job.plan.dtype);
    char all[160] = "";
    int n = 0;

    if (!names) {
        error_set(e, ERROR_UNSUPPORTED, "device %s does not offer %s for %s", d->info.uuid, r->run.call.op->name,
                  dtype_name(r->run.job.plan.dtype));
        return error_detail_text(e, "key", "op");
    }
    if (!variant->present)
        return 0;
    for (; *names; names++) {
        if (rpc_text_is(variant, *names)) {
            r->run.job.variant = *names;
            return 0;
        }
        if (n < (int)sizeof(all) - 1)
            n += snprintf(all + n, sizeof(all) - (size_t)n, " %s", *names);
    }
    error_set(e, ERROR_INVALID_ARGUMENT, "attrs.variant: this device has for %s only:%s", r->run.call.op->name, all);
    return error_detail_text(e, "key", "attrs.variant");
}

/* ---- where, and what with ---- */

static int choose_device(struct request *r, const struct rpc_arg *arg, struct error *e)
{
    struct run *run = &r->run;
    const unsigned operands = run->call.op->n_inputs + run->call.op->n_outputs;
    struct backend_device *tensors = NULL;

    for (unsigned i = 0; i < operands; i++) {
        const struct mapping *m = run->operands[i].mapping;

        if (!m || !m->device)
            continue;
        if (tensors && m->device != tensors) {
            error_set(e, ERROR_DEVICE_MISMATCH, "the tensors live on %s and on %s; move them to one device",
                      tensors->info.uuid, m->device->info.uuid);
            return error_detail_text(e, "key", i < run->call.op->n_inputs ? "in" : "out");
        }
        tensors = m->device;
    }
    run->device = tensors;
    if (!tensors || arg->present) {
        run->device = request_device(r->connection->server, arg, e);
        if (!run->device)
            return -1;
    }
    if (tensors && run->device != tensors) {
        error_set(e, ERROR_DEVICE_MISMATCH, "the tensors live on %s, but device says %s", tensors->info.uuid,
                  run->device->info.uuid);
        return error_detail_text(e, "key", "device");
    }
    return 0;
}

/* Equal handle bytes with different ids in one request could never all be open. */
static int check_handles(const struct run *run, unsigned operands, struct error *e)
{
    for (unsigned i = 0; i < operands; i++) {
        const struct mapping *a = run->operands[i].mapping;

        for (unsigned j = 0; a && j < i; j++) {
            const struct mapping *b = run->operands[j].mapping;

            if (!b || a == b || a->kind != MEMORY_CUDA_IPC || b->kind != MEMORY_CUDA_IPC)
                continue;
            if (a->keyed != b->keyed) {
                error_set(e, ERROR_INVALID_ARGUMENT, "give alloc_id with every reference of a request, or with none");
                return error_detail_text(e, "key", "alloc_id");
            }
        }
        if (a && a->stale) {
            error_set(e, ERROR_STALE_BUFFER,
                      "two references of this request have equal handles but different "
                      "alloc_ids; the older allocation was freed");
            return error_detail_text(e, "key", i < run->call.op->n_inputs ? "in" : "out");
        }
    }
    return 0;
}

static int check_overlap(struct run *run, struct error *e)
{
    const struct op *op = run->call.op;

    run->job.in_place = -1;
    for (unsigned o = op->n_inputs; o < op->n_inputs + op->n_outputs; o++)
        for (unsigned i = 0; i < o; i++) {
            const struct mapping *a = run->operands[o].mapping, *b = run->operands[i].mapping;
            const struct tensor *out = &run->call.tensors[o], *other = &run->call.tensors[i];

            if (!a || !b || !mapping_same_memory(a, b) || !tensor_share_elements(out, other))
                continue;
            if (i < op->n_inputs && run->job.plan.kind == PLAN_ELEMENTWISE && tensor_same_view(out, other)) {
                run->job.in_place = (int)i;
                continue;
            }
            error_set(e, ERROR_OVERLAP, "out[%u] shares memory with %s[%u]; give it memory of its own",
                      o - op->n_inputs, i < op->n_inputs ? "in" : "out", i < op->n_inputs ? i : i - op->n_inputs);
            return error_detail_text(e, "key", "out");
        }
    return 0;
}

static int set_job(struct request *r, const struct rpc_arg *args, const struct rpc_arg *variant, struct error *e)
{
    struct run *run = &r->run;
    const unsigned operands = run->call.op->n_inputs + run->call.op->n_outputs;

    run->job.op = run->call.op;
    run->job.repeat = (uint32_t)args[RUN_repeat].u;
    run->job.warmup = (uint32_t)args[RUN_warmup].u;
    run->job.timing = args[RUN_timing].b;
    if (op_plan(&run->call, &run->job.plan, e) < 0 || check_handles(run, operands, e) < 0 ||
        check_overlap(run, e) < 0 || choose_device(r, &args[RUN_device], e) < 0 || choose_variant(r, variant, e) < 0)
        return -1;
    if (run->job.repeat + run->job.warmup > 1 && op_reads_output(&run->call, run->job.in_place))
        return fail(e, ERROR_INVALID_ARGUMENT, "", "repeat",
                    "the op reads what it writes (in place, or beta is not 0), so repeating would apply it again and "
                    "again; use another output");
    for (unsigned i = 0; i < operands; i++)
        run->job.operands[i] =
            (struct backend_operand){.offset = run->call.tensors[i].offset, .extent = run->call.tensors[i].extent};
    run->samples = &run->sample;
    if (run->job.repeat > 1)
        run->samples = malloc(run->job.repeat * sizeof(double));
    if (!run->samples)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for %u samples", run->job.repeat);
    run->job.samples = run->samples;
    if (run->device->backend->check)
        return run->device->backend->check(run->device, &run->job, e);
    return 0;
}

int run_decode(struct request *r, const struct rpc_arg *args, struct error *e)
{
    struct rpc_arg variant = {0};
    const struct op *op = op_find(args[RUN_op].text, args[RUN_op].length);

    memset(&r->run, 0, sizeof(r->run));
    r->run.map_us = NAN;
    list_init(&r->run.queue_link);
    list_init(&r->run.order_link);
    list_init(&r->run.deadline_link);
    if (!op)
        return fail(e, ERROR_UNKNOWN_OP, "", "op", "no such op; hello lists them");
    r->run.call.op = op;
    if (decode_tensors(r, &args[RUN_in], 0, op->n_inputs, "in", e) < 0 ||
        decode_tensors(r, &args[RUN_out], op->n_inputs, op->n_outputs, "out", e) < 0 ||
        decode_attrs(r, args[RUN_attrs].items, &variant, e) < 0 || set_job(r, args, &variant, e) < 0) {
        run_release(&r->run);
        return -1;
    }
    if (args[RUN_deadline_ms].present)
        r->run.deadline_ns = r->received_ns + args[RUN_deadline_ms].u * 1000000U;
    return 0;
}
