/* Declarations as messages have them. */
#include "core/decode.h"

#include <stdio.h>
#include <string.h>

static const struct rpc_field param_fields[] = {KOPS_PARAMS_PARAM(RPC_FIELD)};
static const struct rpc_field map_fields[] = {KOPS_PARAMS_TENSOR_MAP(RPC_FIELD)};
enum { PATH_MAX_LENGTH = 32 };

int dtype_decode(const struct rpc_arg *name, const char *path, enum dtype *ret, struct error *e)
{
#define X(NAME, text, value, size)                                                                                     \
    if (rpc_text_is(name, text)) {                                                                                     \
        *ret = DTYPE_##NAME;                                                                                           \
        return 0;                                                                                                      \
    }
    KOPS_DTYPES(X)
#undef X
    return error_at(e, ERROR_UNKNOWN_DTYPE, path, "dtype", "no such dtype; hello lists what each op takes");
}

static int decode_value(const struct rpc_value *value, const char *path, const char *key, struct kernel_value *ret,
                        struct error *e)
{
    const struct rpc_field number = {.key = key, .type = RPC_INT}, text = {.key = key, .type = RPC_STR};
    struct rpc_arg arg;

    *ret = (struct kernel_value){.type = KERNEL_ABSENT};
    if (rpc_is_nil(value))
        return 0;
    if (rpc_is_integer(value)) {
        if (rpc_decode_value(value, &number, path, &arg, e) < 0)
            return -1;
        *ret = (struct kernel_value){.type = KERNEL_NUMBER, .number = arg.i};
        return 0;
    }
    if (!rpc_is_text(value))
        return error_at(e, ERROR_WRONG_TYPE, path, key, "must be an integer, or an expression (str)");
    if (rpc_decode_value(value, &text, path, &arg, e) < 0)
        return -1;
    *ret = (struct kernel_value){.type = KERNEL_TEXT, .text = arg.text, .length = arg.length};
    return 0;
}

static int decode_values(const struct rpc_arg *list, const char *path, const char *key, unsigned max, bool may_be_nil,
                         struct kernel_value *into, struct error *e)
{
    const struct rpc_value *value = NULL;
    char name[PATH_MAX_LENGTH + sizeof("map.")];

    if (list->length > max || (!may_be_nil && !list->length)) {
        error_set(e, ERROR_INVALID_ARGUMENT, "%s%s: takes %u to %u, not %u", path, key, may_be_nil ? 0U : 1U, max,
                  list->length);
        snprintf(name, sizeof(name), "%s%s", path, key);
        return error_detail_text(e, "key", name);
    }
    for (uint32_t i = 0; i < list->length; i++) {
        snprintf(name, sizeof(name), "%s[%u]", key, i);
        value = rpc_list_next(list, value);
        if (decode_value(value, path, name, &into[i], e) < 0)
            return -1;
        if (into[i].type == KERNEL_ABSENT && !may_be_nil)
            return error_at(e, ERROR_WRONG_TYPE, path, name, "must be an integer, or an expression (str)");
    }
    return 0;
}

static int decode_kind(const struct rpc_arg *arg, const char *path, enum kernel_param_kind *ret, struct error *e)
{
    static const char *const names[] = {
        [KERNEL_IN] = "in", [KERNEL_OUT] = "out", [KERNEL_INOUT] = "inout", [KERNEL_SCALAR] = "scalar"};

    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (rpc_text_is(arg, names[i])) {
            *ret = (enum kernel_param_kind)i;
            return 0;
        }
    return error_at(e, ERROR_INVALID_ARGUMENT, path, "kind", "must be in, out, inout or scalar");
}

static int decode_map(const struct rpc_value *value, const char *path, struct kernel_map_declaration *ret,
                      struct error *e)
{
    struct rpc_arg args[TENSOR_MAP_KEYS];
    char dotted[PATH_MAX_LENGTH + sizeof("map.")];

    snprintf(dotted, sizeof(dotted), "%smap.", path);
    if (rpc_decode_map(value, map_fields, TENSOR_MAP_KEYS, dotted, args, e) < 0 ||
        decode_values(&args[TENSOR_MAP_box], dotted, "box", PLAN_MAP_RANK, false, ret->box, e) < 0)
        return -1;
    ret->n_box = args[TENSOR_MAP_box].length;
    if (args[TENSOR_MAP_steps].present && args[TENSOR_MAP_steps].length != ret->n_box)
        return error_at(e, ERROR_INVALID_ARGUMENT, dotted, "steps", "has as many numbers as box");
    ret->n_steps = args[TENSOR_MAP_steps].present ? args[TENSOR_MAP_steps].length : 0;
    ret->swizzle = args[TENSOR_MAP_swizzle].u;
    ret->interleave = args[TENSOR_MAP_interleave].u;
    ret->l2 = args[TENSOR_MAP_l2].u;
    ret->nan = args[TENSOR_MAP_nan].b;
    ret->tf32 = args[TENSOR_MAP_tf32].b;
    return ret->n_steps ? rpc_decode_ints(&args[TENSOR_MAP_steps], dotted, "steps", ret->steps, e) : 0;
}

static int decode_param(const struct rpc_value *value, const char *path, struct kernel_param_declaration *ret,
                        struct error *e)
{
    struct rpc_arg args[PARAM_KEYS];
    char dotted[PATH_MAX_LENGTH + 1];

    snprintf(dotted, sizeof(dotted), "%s.", path);
    if (rpc_decode_map(value, param_fields, PARAM_KEYS, dotted, args, e) < 0)
        return -1;
    *ret = (struct kernel_param_declaration){
        .name = args[PARAM_name].text,
        .name_length = args[PARAM_name].length,
        .rank = args[PARAM_rank].present ? (int)args[PARAM_rank].u : -1,
        .n_shape = args[PARAM_shape].present ? (int)args[PARAM_shape].length : -1,
        .align = args[PARAM_align].u,
        .strided = args[PARAM_strided].b,
        .lanes = args[PARAM_lanes].u,
    };
    if (decode_kind(&args[PARAM_kind], dotted, &ret->kind, e) < 0 ||
        dtype_decode(&args[PARAM_dtype], dotted, &ret->dtype, e) < 0)
        return -1;
    if (args[PARAM_shape].present &&
        decode_values(&args[PARAM_shape], dotted, "shape", TENSOR_MAX_RANK, true, ret->shape, e) < 0)
        return -1;
    if (args[PARAM_map].present && decode_map(args[PARAM_map].items, dotted, &ret->map, e) < 0)
        return -1;
    return args[PARAM_elements].present
               ? decode_value(args[PARAM_elements].items, dotted, "elements", &ret->elements, e)
               : 0;
}

static int decode_geometry(const struct rpc_arg *list, const char *key, struct kernel_dimensions_declaration *ret,
                           struct error *e)
{
    if (!list->present)
        return 0;
    ret->n = list->length;
    return decode_values(list, "", key, 3, false, ret->at, e);
}

int kernel_declaration_decode(const struct rpc_arg *args, struct kernel_param_declaration params[KERNEL_MAX_PARAMS],
                              struct kernel_declaration *d, struct error *e)
{
    const struct rpc_value *value = NULL;
    char path[PATH_MAX_LENGTH];

    d->n_params = args[KERNEL_params].length;
    d->params = params;
    d->alias = args[KERNEL_alias].b;
    d->cooperative = args[KERNEL_cooperative].b;
    d->pdl = args[KERNEL_pdl].b;
    if (d->n_params > KERNEL_MAX_PARAMS) {
        error_set(e, ERROR_LIMIT_EXCEEDED, "params: at most %u parameters", KERNEL_MAX_PARAMS);
        error_detail_text(e, "key", "params");
        error_detail_number(e, "limit", KERNEL_MAX_PARAMS);
        return error_detail_number(e, "value", d->n_params);
    }
    for (unsigned i = 0; i < d->n_params; i++) {
        snprintf(path, sizeof(path), "params[%u]", i);
        value = rpc_list_next(&args[KERNEL_params], value);
        if (decode_param(value, path, &params[i], e) < 0)
            return -1;
    }
    if (decode_geometry(&args[KERNEL_grid], "grid", &d->grid, e) < 0 ||
        decode_geometry(&args[KERNEL_block], "block", &d->block, e) < 0 ||
        decode_geometry(&args[KERNEL_cluster], "cluster", &d->cluster, e) < 0)
        return -1;
    return args[KERNEL_shared].present ? decode_value(args[KERNEL_shared].items, "", "shared", &d->shared, e) : 0;
}

/* Attributes of ops as messages have them. */

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
    return error_at(e, ERROR_INVALID_ARGUMENT, "attrs.", attr->name, "not one of the choices that hello lists");
}

int op_attrs_decode(const struct op *op, const struct rpc_value *map, union op_attr_value *into,
                    struct rpc_arg *ret_variant, struct error *e)
{
    struct rpc_entries entries;
    struct rpc_entry entry;
    unsigned seen = 0;

    for (unsigned i = 0; i < op->n_attrs; i++)
        into[i] = op->attrs[i].fallback;
    if (!map)
        return 0;
    entries = rpc_map_entries(map);
    while (rpc_map_next(&entries, &entry)) {
        static const struct rpc_field variant = {.key = "variant", .type = RPC_STR};
        const struct rpc_arg name = {.text = entry.key, .length = entry.length};
        char shown[ERROR_DETAIL_TEXT_MAX];
        unsigned j = 0;

        if (!entry.key)
            return error_at(e, ERROR_WRONG_TYPE, "attrs.", "(key)", "keys must be str");
        if (rpc_text_is(&name, "variant")) {
            if (ret_variant->present)
                return error_at(e, ERROR_UNKNOWN_KEY, "attrs.", "variant", "given twice");
            if (rpc_decode_value(entry.value, &variant, "attrs.", ret_variant, e) < 0)
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
            return error_at(e, ERROR_UNKNOWN_KEY, "attrs.", shown,
                            j == op->n_attrs ? "this op has no such attribute" : "given twice");
        }
        seen |= 1U << j;
        if (decode_attr(&op->attrs[j], entry.value, &into[j], e) < 0)
            return -1;
    }
    return 0;
}
