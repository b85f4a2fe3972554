/* Attributes of ops as messages have them. */
#include "core/decode.h"

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
