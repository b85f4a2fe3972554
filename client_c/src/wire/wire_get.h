/* Reading decoded MessagePack values, for wire_unpack.c and wire_info.c. */
#ifndef KOPS_CLIENT_WIRE_GET_H
#define KOPS_CLIENT_WIRE_GET_H

#include <math.h>
#include <msgpack.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline bool text_is(const msgpack_object *o, const char *text, size_t length)
{
    return o->type == MSGPACK_OBJECT_STR && o->via.str.size == length && !memcmp(o->via.str.ptr, text, length);
}

/* The value of a key; NULL when `map` is no map or has none such. */
static inline const msgpack_object *map_find(const msgpack_object *map, const char *key)
{
    size_t length = strlen(key);

    if (!map || map->type != MSGPACK_OBJECT_MAP)
        return NULL;
    for (uint32_t i = 0; i < map->via.map.size; i++)
        if (text_is(&map->via.map.ptr[i].key, key, length))
            return &map->via.map.ptr[i].val;
    return NULL;
}

static inline bool get_uint(const msgpack_object *o, uint64_t *ret)
{
    if (!o || o->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        return false;
    *ret = o->via.u64;
    return true;
}

static inline bool get_number(const msgpack_object *o, double *ret)
{
    if (!o)
        return false;
    switch (o->type) {
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        *ret = (double)o->via.u64;
        return true;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        *ret = (double)o->via.i64;
        return true;
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        *ret = o->via.f64;
        return true;
    default:
        return false;
    }
}

/* NAN where there is no number. */
static inline double number_or_nan(const msgpack_object *o)
{
    double d;

    return get_number(o, &d) ? d : (double)NAN;
}

static inline uint64_t uint_or_zero(const msgpack_object *o)
{
    uint64_t u;

    return get_uint(o, &u) ? u : 0;
}

static inline bool get_bool(const msgpack_object *o)
{
    return o && o->type == MSGPACK_OBJECT_BOOLEAN && o->via.boolean;
}

#endif
