#include "rpc/value.h"

#include <stdio.h>
#include <string.h>

#include "codec/read.h"

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

static int wrong_number(const struct codec_item *item, const struct rpc_field *field, const char *path, struct error *e)
{
    return item->type == CODEC_UINT || item->type == CODEC_NEGATIVE ? out_of_range(field, path, e)
                                                                    : wrong_type(field, path, e);
}

static bool take_double(const struct codec_item *item, double *ret)
{
    if (item->type == CODEC_FLOAT)
        *ret = item->f;
    else if (item->type == CODEC_UINT)
        *ret = (double)item->u;
    else if (item->type == CODEC_NEGATIVE)
        *ret = (double)item->i;
    else
        return false;
    return true;
}

/* The value at `at`, which is `item`. */
static int take_value(const unsigned char *at, const struct codec_item *item, const struct rpc_field *field,
                      const char *path, struct rpc_arg *arg, struct error *e)
{
    switch (field->type) {
    case RPC_UINT:
        if (item->type != CODEC_UINT || item->u < field->min || item->u > field->max)
            return wrong_number(item, field, path, e);
        arg->u = item->u;
        return 0;
    case RPC_INT:
        if (item->type != CODEC_NEGATIVE && (item->type != CODEC_UINT || item->u > INT64_MAX))
            return wrong_number(item, field, path, e);
        arg->i = item->i;
        return 0;
    case RPC_FLOAT:
        if (!take_double(item, &arg->f))
            break;
        return 0;
    case RPC_BOOL:
        if (item->type != CODEC_BOOL)
            break;
        arg->b = item->b;
        return 0;
    case RPC_DEVICE:
        if (item->type == CODEC_UINT) {
            arg->u = item->u;
            return 0;
        }
        /* fall through */
    case RPC_STR:
    case RPC_BIN:
        if (item->type != (field->type == RPC_BIN ? CODEC_BIN : CODEC_STR))
            break;
        arg->text = item->text;
        arg->length = item->count;
        return 0;
    case RPC_LIST:
        if (item->type != CODEC_ARRAY)
            break;
        arg->items = (const struct rpc_value *)item->next;
        arg->length = item->count;
        return 0;
    case RPC_MAP:
        if (item->type != CODEC_MAP)
            break;
        arg->length = item->count;
        /* fall through */
    case RPC_ANY:
        arg->items = (const struct rpc_value *)at;
        return 0;
    }
    return wrong_type(field, path, e);
}

int rpc_decode_value(const struct rpc_value *value, const struct rpc_field *field, const char *path,
                     struct rpc_arg *ret_arg, struct error *e)
{
    struct rpc_arg arg = {.present = true};
    struct codec_item item;

    codec_read((const unsigned char *)value, &item);
    if (take_value((const unsigned char *)value, &item, field, path, &arg, e) < 0)
        return -1;
    *ret_arg = arg;
    return 0;
}

int rpc_decode_ints(const struct rpc_arg *list, const char *path, const char *key, int64_t *into, struct error *e)
{
    const struct rpc_field field = {.key = key, .type = RPC_INT};
    struct codec_item item = {.next = (const unsigned char *)list->items};
    struct rpc_arg arg = {0};

    for (uint32_t i = 0; i < list->length; i++) {
        const unsigned char *at = item.next;

        codec_read(at, &item);
        if (take_value(at, &item, &field, path, &arg, e) < 0)
            return -1;
        into[i] = arg.i;
    }
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

/* "in[0] must be a map" for the path "in[0].". */
static int not_a_map(const char *path, struct error *e)
{
    static const struct rpc_field as_map = {.key = "", .type = RPC_MAP};
    const size_t length = strlen(path);
    char name[64];

    snprintf(name, sizeof(name), "%.*s", length ? (int)length - 1 : 0, path);
    return wrong_type(&as_map, name, e);
}

static bool is_nfds(const struct codec_item *key)
{
    return key->count == 4 && !memcmp(key->text, "nfds", 4);
}

int rpc_decode_map(const struct rpc_value *map, const struct rpc_field *fields, unsigned n_fields, const char *path,
                   struct rpc_arg *args, struct error *e)
{
    unsigned hint = 0, missing = 0;
    struct codec_item item;

    for (unsigned i = 0; i < n_fields; i++) {
        args[i] = (struct rpc_arg){.u = fields[i].fallback, .b = fields[i].fallback != 0};
        missing += fields[i].required;
    }
    codec_read((const unsigned char *)map, &item);
    if (item.type != CODEC_MAP)
        return not_a_map(path, e);
    for (uint32_t pairs = item.count; pairs; pairs--) {
        const unsigned char *at;
        int i;

        i = codec_find(item.next, fields, sizeof(*fields), n_fields, hint, &item);
        if (item.type != CODEC_STR)
            return bad_key(ERROR_WRONG_TYPE, path, "(key)", 5, "keys must be str", e);
        at = item.next;
        if (i < 0) { /* an unknown key, but for nfds at the top */
            if (*path || !is_nfds(&item))
                return bad_key(ERROR_UNKNOWN_KEY, path, item.text, item.count, "no such key here", e);
            item.next = codec_skip(at);
            continue;
        }
        hint = (unsigned)i + 1;
        if (args[i].present)
            return bad_key(ERROR_UNKNOWN_KEY, path, fields[i].key, strlen(fields[i].key), "given twice", e);
        codec_read(at, &item);
        args[i] = (struct rpc_arg){.present = true};
        missing -= fields[i].required;
        if (take_value(at, &item, &fields[i], path, &args[i], e) < 0)
            return -1;
        if (pairs > 1 && (item.type == CODEC_ARRAY || item.type == CODEC_MAP))
            item.next = codec_skip(at);
    }
    for (unsigned i = 0; missing; i++)
        if (fields[i].required && !args[i].present)
            return bad_key(ERROR_MISSING_KEY, path, fields[i].key, strlen(fields[i].key), "required", e);
    return 0;
}

const struct rpc_value *rpc_list_next(const struct rpc_arg *list, const struct rpc_value *element)
{
    return element ? (const struct rpc_value *)codec_skip((const unsigned char *)element) : list->items;
}

struct rpc_entries rpc_map_entries(const struct rpc_value *map)
{
    struct codec_item item;

    if (!map)
        return (struct rpc_entries){0};
    codec_read((const unsigned char *)map, &item);
    return (struct rpc_entries){(const struct rpc_value *)item.next, item.count};
}

bool rpc_map_next(struct rpc_entries *entries, struct rpc_entry *ret_entry)
{
    const unsigned char *value;
    struct codec_item key;

    if (!entries->left)
        return false;
    codec_read((const unsigned char *)entries->next, &key);
    value = codec_skip((const unsigned char *)entries->next);
    *ret_entry = (struct rpc_entry){.value = (const struct rpc_value *)value};
    if (key.type == CODEC_STR) {
        ret_entry->key = key.text;
        ret_entry->length = key.count;
    }
    entries->next = (const struct rpc_value *)codec_skip(value);
    entries->left--;
    return true;
}

bool rpc_is_map(const struct rpc_value *value)
{
    return codec_type_of((const unsigned char *)value) == CODEC_MAP;
}

bool rpc_is_nil(const struct rpc_value *value)
{
    return codec_type_of((const unsigned char *)value) == CODEC_NIL;
}

bool rpc_is_bool(const struct rpc_value *value)
{
    return codec_type_of((const unsigned char *)value) == CODEC_BOOL;
}

bool rpc_is_integer(const struct rpc_value *value)
{
    const enum codec_type type = codec_type_of((const unsigned char *)value);

    return type == CODEC_UINT || type == CODEC_NEGATIVE;
}

bool rpc_is_text(const struct rpc_value *value)
{
    return codec_type_of((const unsigned char *)value) == CODEC_STR;
}

bool rpc_text_is(const struct rpc_arg *arg, const char *text)
{
    return arg->text && strlen(text) == arg->length && !memcmp(arg->text, text, arg->length);
}
