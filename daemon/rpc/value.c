#include "rpc/value.h"

#include <math.h>
#include <msgpack.h>
#include <stdio.h>
#include <string.h>

static const msgpack_object *object(const struct rpc_value *value)
{
    return (const msgpack_object *)(const void *)value;
}

static const struct rpc_value *value_of(const msgpack_object *o)
{
    return (const struct rpc_value *)(const void *)o;
}

static const char *const type_names[] = {
    [RPC_UINT] = "a non-negative integer",
    [RPC_INT] = "an integer",
    [RPC_FLOAT] = "a number",
    [RPC_BOOL] = "a bool",
    [RPC_STR] = "a str",
    [RPC_BIN] = "a bin",
    [RPC_MAP] = "a map",
    [RPC_LIST] = "a list",
    [RPC_DEVICE] = "a device's UUID (str) or index (uint)",
    [RPC_ANY] = "a value",
};

static int wrong_type(const struct rpc_field *field, const char *path, struct error *e)
{
    char key[64];

    snprintf(key, sizeof(key), "%s%s", path, field->key);
    error_set(e, ERROR_WRONG_TYPE, "%s must be %s", key, type_names[field->type]);
    return error_detail_text(e, "key", key);
}

static int out_of_range(const struct rpc_field *field, const char *path, struct error *e)
{
    char key[64];

    snprintf(key, sizeof(key), "%s%s", path, field->key);
    error_set(e, ERROR_OUT_OF_RANGE, "%s must lie between %llu and %llu", key, (unsigned long long)field->min,
              (unsigned long long)field->max);
    error_detail_text(e, "key", key);
    error_detail_number(e, "min", (int64_t)field->min);
    return error_detail_number(e, "max", field->max > INT64_MAX ? INT64_MAX : (int64_t)field->max);
}

static int decode_number(const msgpack_object *o, const struct rpc_field *field, const char *path, struct rpc_arg *arg,
                         struct error *e)
{
    const bool negative = o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER;
    const bool integer = negative || o->type == MSGPACK_OBJECT_POSITIVE_INTEGER;

    if (field->type == RPC_FLOAT) {
        if (integer)
            arg->f = negative ? (double)o->via.i64 : (double)o->via.u64;
        else if (o->type == MSGPACK_OBJECT_FLOAT32 || o->type == MSGPACK_OBJECT_FLOAT64)
            arg->f = o->via.f64;
        else
            return wrong_type(field, path, e);
        return 0;
    }
    if (!integer)
        return wrong_type(field, path, e);
    if (field->type == RPC_INT) {
        if (!negative && o->via.u64 > INT64_MAX)
            return out_of_range(field, path, e);
        arg->i = negative ? o->via.i64 : (int64_t)o->via.u64;
        return 0;
    }
    if (negative || o->via.u64 < field->min || o->via.u64 > field->max)
        return out_of_range(field, path, e);
    arg->u = o->via.u64;
    return 0;
}

int rpc_decode_value(const struct rpc_value *value, const struct rpc_field *field, const char *path,
                     struct rpc_arg *ret_arg, struct error *e)
{
    const msgpack_object *o = object(value);
    struct rpc_arg arg = {.present = true};

    switch (field->type) {
    case RPC_UINT:
    case RPC_INT:
    case RPC_FLOAT:
        if (decode_number(o, field, path, &arg, e) < 0)
            return -1;
        break;
    case RPC_BOOL:
        if (o->type != MSGPACK_OBJECT_BOOLEAN)
            return wrong_type(field, path, e);
        arg.b = o->via.boolean;
        break;
    case RPC_DEVICE:
        if (o->type == MSGPACK_OBJECT_POSITIVE_INTEGER) {
            arg.u = o->via.u64;
            break;
        }
        /* fall through */
    case RPC_STR:
        if (o->type != MSGPACK_OBJECT_STR)
            return wrong_type(field, path, e);
        arg.text = o->via.str.ptr;
        arg.length = o->via.str.size;
        break;
    case RPC_BIN:
        if (o->type != MSGPACK_OBJECT_BIN)
            return wrong_type(field, path, e);
        arg.text = o->via.bin.ptr;
        arg.length = o->via.bin.size;
        break;
    case RPC_LIST:
        if (o->type != MSGPACK_OBJECT_ARRAY)
            return wrong_type(field, path, e);
        arg.items = value_of(o->via.array.ptr);
        arg.length = o->via.array.size;
        break;
    case RPC_MAP:
        if (o->type != MSGPACK_OBJECT_MAP)
            return wrong_type(field, path, e);
        arg.items = value;
        arg.length = o->via.map.size;
        break;
    case RPC_ANY:
        arg.items = value;
        break;
    }
    *ret_arg = arg;
    return 0;
}

static int bad_key(enum error_code code, const char *path, const char *name, size_t length, const char *what,
                   struct error *e)
{
    char key[64];
    int n = snprintf(key, sizeof(key), "%s", path);

    /* A client's key is echoed with anything unprintable replaced, and cut. */
    for (size_t i = 0; i < length && n < (int)sizeof(key) - 1; i++)
        key[n++] = name[i] >= 0x20 && name[i] < 0x7f ? name[i] : '?';
    key[n] = '\0';
    error_set(e, code, "%s: %s", key, what);
    return error_detail_text(e, "key", key);
}

static bool key_is(const char *key, const msgpack_object_str *text)
{
    uint32_t i = 0;

    while (i < text->size && key[i] && key[i] == text->ptr[i])
        i++;
    return i == text->size && !key[i];
}

/* Looks from `hint` on: most clients send keys in the order of their declaration. */
static const struct rpc_field *find_field(const struct rpc_field *fields, unsigned n, unsigned hint,
                                          const msgpack_object_str *key)
{
    for (unsigned i = hint; i < n; i++)
        if (key_is(fields[i].key, key))
            return &fields[i];
    for (unsigned i = 0; i < hint; i++)
        if (key_is(fields[i].key, key))
            return &fields[i];
    return NULL;
}

int rpc_decode_map(const struct rpc_value *map, const struct rpc_field *fields, unsigned n_fields, const char *path,
                   struct rpc_arg *args, struct error *e)
{
    const msgpack_object *o = object(map);
    unsigned hint = 0;

    for (unsigned i = 0; i < n_fields; i++)
        args[i] = (struct rpc_arg){.u = fields[i].fallback, .b = fields[i].fallback != 0};
    for (uint32_t i = 0; i < o->via.map.size; i++) {
        const msgpack_object_kv *kv = &o->via.map.ptr[i];
        const struct rpc_field *field;

        if (kv->key.type != MSGPACK_OBJECT_STR)
            return bad_key(ERROR_WRONG_TYPE, path, "(key)", 5, "keys must be str", e);
        field = find_field(fields, n_fields, hint, &kv->key.via.str);
        if (!field) {
            if (!*path && kv->key.via.str.size == 4 && !memcmp(kv->key.via.str.ptr, "nfds", 4))
                continue;
            return bad_key(ERROR_UNKNOWN_KEY, path, kv->key.via.str.ptr, kv->key.via.str.size, "no such key here", e);
        }
        hint = (unsigned)(field - fields) + 1;
        if (args[field - fields].present)
            return bad_key(ERROR_UNKNOWN_KEY, path, field->key, strlen(field->key), "given twice", e);
        if (rpc_decode_value(value_of(&kv->val), field, path, &args[field - fields], e) < 0)
            return -1;
    }
    for (unsigned i = 0; i < n_fields; i++)
        if (fields[i].required && !args[i].present)
            return bad_key(ERROR_MISSING_KEY, path, fields[i].key, strlen(fields[i].key), "required", e);
    return 0;
}

const struct rpc_value *rpc_list_item(const struct rpc_value *items, uint32_t index)
{
    return value_of(object(items) + index);
}

uint32_t rpc_map_size(const struct rpc_value *map)
{
    return object(map)->via.map.size;
}

bool rpc_is_map(const struct rpc_value *value)
{
    return object(value)->type == MSGPACK_OBJECT_MAP;
}

bool rpc_is_nil(const struct rpc_value *value)
{
    return object(value)->type == MSGPACK_OBJECT_NIL;
}

bool rpc_is_bool(const struct rpc_value *value)
{
    return object(value)->type == MSGPACK_OBJECT_BOOLEAN;
}

bool rpc_is_integer(const struct rpc_value *value)
{
    return object(value)->type == MSGPACK_OBJECT_POSITIVE_INTEGER ||
           object(value)->type == MSGPACK_OBJECT_NEGATIVE_INTEGER;
}

bool rpc_is_text(const struct rpc_value *value)
{
    return object(value)->type == MSGPACK_OBJECT_STR;
}

int rpc_map_entry(const struct rpc_value *map, uint32_t index, const char **ret_key, uint32_t *ret_length,
                  const struct rpc_value **ret_value)
{
    const msgpack_object_kv *kv = &object(map)->via.map.ptr[index];

    if (kv->key.type != MSGPACK_OBJECT_STR)
        return -1;
    *ret_key = kv->key.via.str.ptr;
    *ret_length = kv->key.via.str.size;
    *ret_value = value_of(&kv->val);
    return 0;
}

bool rpc_text_is(const struct rpc_arg *arg, const char *text)
{
    return arg->text && strlen(text) == arg->length && !memcmp(arg->text, text, arg->length);
}
