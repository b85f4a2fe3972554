#include "rpc/record.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "codec/write.h"

enum kind {
    KIND_UINT,
    KIND_FLOAT,
    KIND_BOOL,
    KIND_STR,
    KIND_MAYBE_UINT,
    KIND_MAYBE_BOOL,
    KIND_MAP,         /* a struct, which is written by `of` */
    KIND_MAP_OR_NULL, /* a pointer to one */
    KIND_LIST,        /* struct rpc_values: a list, */
    KIND_NAMED,       /* a map with keys of any name, */
    KIND_ANY,         /* or one value of any type */
};

struct rpc_record_field {
    const char *key;
    uint8_t key_length, kind;
    bool optional;
    uint16_t offset;
    const struct rpc_record *of;
};

enum { FIELDS_MAX = 64 };

struct rpc_record {
    const struct rpc_record_field *fields;
    unsigned n_fields;
};

#define FIELD(record, key, member, KIND, optional, of)                                                                 \
    {                                                                                                                  \
        key, sizeof(key) - 1, KIND_##KIND, optional, offsetof(struct record, member), of                               \
    }
/* A record of more fields does not compile: the array would have a negative size. */
#define RECORD_OF(fields)                                                                                              \
    {                                                                                                                  \
        fields, sizeof(fields) / sizeof(fields[0]) +                                                                   \
                    0 * sizeof(char[sizeof(fields) / sizeof(fields[0]) <= FIELDS_MAX ? 1 : -1])                        \
    }
#include "proto/generated/record_tables.h"

static bool is_there(const struct rpc_record_field *f, const void *member)
{
    switch (f->kind) {
    case KIND_FLOAT:
        return !isnan(*(const double *)member);
    case KIND_STR:
    case KIND_MAP_OR_NULL:
        return *(const void *const *)member != NULL;
    case KIND_MAYBE_UINT:
    case KIND_MAYBE_BOOL:
        return ((const struct rpc_maybe *)member)->is_there;
    default:
        return ((const struct rpc_values *)member)->each != NULL;
    }
}

static void write_values(struct rpc_output *out, const struct rpc_values *values, uint32_t n)
{
    for (uint32_t i = 0; values->each && i < n; i++)
        values->each(out, values->of, i);
}

void rpc_write_list(struct rpc_output *out, struct rpc_values list)
{
    rpc_write_array(out, list.n);
    write_values(out, &list, list.n);
}

static void write_value(struct rpc_output *out, const struct rpc_record_field *f, const void *member)
{
    const struct rpc_values *values = member;

    switch (f->kind) {
    case KIND_STR:
        rpc_write_any_text(out, *(const char *const *)member ? *(const char *const *)member : "");
        break;
    case KIND_MAP:
        rpc_write_record(out, f->of, member);
        break;
    case KIND_MAP_OR_NULL:
        rpc_write_record(out, f->of, *(const void *const *)member);
        break;
    case KIND_LIST:
        rpc_write_list(out, *values);
        break;
    case KIND_NAMED:
        rpc_write_map(out, values->n);
        write_values(out, values, values->n);
        break;
    default:
        write_values(out, values, 1);
        break;
    }
}

/* Writes the key, and the value where that is a number: most are. False: the value must follow. */
static bool write_key(struct rpc_output *out, const struct rpc_record_field *f, const void *member)
{
    unsigned char *at = buffer_reserve(&out->bytes, 2 * CODEC_HEAD_MAX + f->key_length);
    bool all = true;

    if (!at)
        return true; /* `failed` is set, and stays */
    codec_write_text(&at, f->key, f->key_length);
    switch (f->kind) {
    case KIND_UINT:
        codec_write_uint64(&at, *(const uint64_t *)member);
        break;
    case KIND_FLOAT:
        codec_write_double(&at, *(const double *)member);
        break;
    case KIND_BOOL:
        codec_write_bool(&at, *(const bool *)member);
        break;
    case KIND_MAYBE_UINT:
        codec_write_uint64(&at, ((const struct rpc_maybe *)member)->value);
        break;
    case KIND_MAYBE_BOOL:
        codec_write_bool(&at, ((const struct rpc_maybe *)member)->value != 0);
        break;
    default:
        all = false;
        break;
    }
    out->bytes.end = (size_t)(at - out->bytes.data);
    return all;
}

void rpc_write_record(struct rpc_output *out, const struct rpc_record *record, const void *values)
{
    const unsigned char *base = values;
    bool there[FIELDS_MAX];
    uint32_t n = 0;

    for (unsigned i = 0; i < record->n_fields; i++) {
        const struct rpc_record_field *f = &record->fields[i];

        there[i] = !f->optional || is_there(f, base + f->offset);
        n += there[i];
    }
    rpc_write_map(out, n);
    for (unsigned i = 0; i < record->n_fields; i++) {
        const struct rpc_record_field *f = &record->fields[i];

        if (there[i] && !write_key(out, f, base + f->offset))
            write_value(out, f, base + f->offset);
    }
}

void rpc_each_text(struct rpc_output *out, const void *of, uint32_t i)
{
    rpc_write_any_text(out, ((const char *const *)of)[i]);
}

void rpc_each_u32(struct rpc_output *out, const void *of, uint32_t i)
{
    rpc_write_uint(out, ((const uint32_t *)of)[i]);
}

void rpc_each_double(struct rpc_output *out, const void *of, uint32_t i)
{
    rpc_write_double(out, ((const double *)of)[i]);
}

void rpc_each_number(struct rpc_output *out, const void *of, uint32_t i)
{
    const struct rpc_number *number = (const struct rpc_number *)of + i;

    rpc_write_text(out, number->key);
    rpc_write_double(out, number->value);
}
