#include "rpc/decode.h"

#include <endian.h>
#include <string.h>

static uint64_t big_endian(const unsigned char *p, unsigned bytes)
{
    uint16_t v16;
    uint32_t v32;
    uint64_t v64;

    switch (bytes) {
    case 1:
        return *p;
    case 2:
        memcpy(&v16, p, sizeof(v16));
        return be16toh(v16);
    case 4:
        memcpy(&v32, p, sizeof(v32));
        return be32toh(v32);
    default:
        memcpy(&v64, p, sizeof(v64));
        return be64toh(v64);
    }
}

static void set_signed(msgpack_object *o, int64_t value)
{
    o->type = value < 0 ? MSGPACK_OBJECT_NEGATIVE_INTEGER : MSGPACK_OBJECT_POSITIVE_INTEGER;
    o->via.i64 = value;
}

static const unsigned char *set_text(msgpack_object *o, msgpack_object_type type, const unsigned char *p, uint32_t n)
{
    o->type = type;
    o->via.str.ptr = (const char *)p; /* bin's members are the same */
    o->via.str.size = n;
    return p + n;
}

static const unsigned char *decode_array(msgpack_zone *zone, const unsigned char *p, uint32_t n, msgpack_object *o)
{
    msgpack_object *items = NULL;

    if (n && !(items = msgpack_zone_malloc(zone, n * sizeof(*items))))
        return NULL;
    o->type = MSGPACK_OBJECT_ARRAY;
    o->via.array.size = n;
    o->via.array.ptr = items;
    for (uint32_t i = 0; p && i < n; i++)
        p = rpc_decode(zone, p, &items[i]);
    return p;
}

static const unsigned char *decode_map(msgpack_zone *zone, const unsigned char *p, uint32_t n, msgpack_object *o)
{
    msgpack_object_kv *entries = NULL;

    if (n && !(entries = msgpack_zone_malloc(zone, n * sizeof(*entries))))
        return NULL;
    o->type = MSGPACK_OBJECT_MAP;
    o->via.map.size = n;
    o->via.map.ptr = entries;
    for (uint32_t i = 0; p && i < n; i++) {
        p = rpc_decode(zone, p, &entries[i].key);
        if (p)
            p = rpc_decode(zone, p, &entries[i].val);
    }
    return p;
}

static const unsigned char *decode_float(const unsigned char *p, unsigned bytes, msgpack_object *o)
{
    uint64_t bits = big_endian(p, bytes);
    uint32_t half = (uint32_t)bits;
    float f;

    if (bytes == 4) {
        memcpy(&f, &half, sizeof(f));
        o->type = MSGPACK_OBJECT_FLOAT32;
        o->via.f64 = (double)f;
    } else {
        o->type = MSGPACK_OBJECT_FLOAT64;
        memcpy(&o->via.f64, &bits, sizeof(bits));
    }
    return p + bytes;
}

/* Types 0xc0 to 0xdf; `p` is behind the type byte. */
static const unsigned char *decode_wide(msgpack_zone *zone, unsigned char type, const unsigned char *p,
                                        msgpack_object *o)
{
    unsigned bytes;

    switch (type) {
    case 0xc2:
    case 0xc3:
        o->type = MSGPACK_OBJECT_BOOLEAN;
        o->via.boolean = type == 0xc3;
        return p;
    case 0xc4:
    case 0xc5:
    case 0xc6:
        bytes = 1U << (type - 0xc4);
        return set_text(o, MSGPACK_OBJECT_BIN, p + bytes, (uint32_t)big_endian(p, bytes));
    case 0xca:
    case 0xcb:
        return decode_float(p, type == 0xca ? 4 : 8, o);
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf:
        bytes = 1U << (type - 0xcc);
        o->type = MSGPACK_OBJECT_POSITIVE_INTEGER;
        o->via.u64 = big_endian(p, bytes);
        return p + bytes;
    case 0xd0:
        set_signed(o, (int8_t)*p);
        return p + 1;
    case 0xd1:
        set_signed(o, (int16_t)big_endian(p, 2));
        return p + 2;
    case 0xd2:
        set_signed(o, (int32_t)big_endian(p, 4));
        return p + 4;
    case 0xd3:
        set_signed(o, (int64_t)big_endian(p, 8));
        return p + 8;
    case 0xd9:
    case 0xda:
    case 0xdb:
        bytes = 1U << (type - 0xd9);
        return set_text(o, MSGPACK_OBJECT_STR, p + bytes, (uint32_t)big_endian(p, bytes));
    case 0xdc:
    case 0xdd:
        bytes = 2U << (type - 0xdc);
        return decode_array(zone, p + bytes, (uint32_t)big_endian(p, bytes), o);
    case 0xde:
    case 0xdf:
        bytes = 2U << (type - 0xde);
        return decode_map(zone, p + bytes, (uint32_t)big_endian(p, bytes), o);
    default: /* nil; a scanned value has nothing else */
        o->type = MSGPACK_OBJECT_NIL;
        return p;
    }
}

const unsigned char *rpc_decode(msgpack_zone *zone, const unsigned char *p, msgpack_object *o)
{
    unsigned char type = *p++;

    if (type < 0x80) {
        o->type = MSGPACK_OBJECT_POSITIVE_INTEGER;
        o->via.u64 = type;
        return p;
    }
    if (type < 0x90)
        return decode_map(zone, p, type & 0x0f, o);
    if (type < 0xa0)
        return decode_array(zone, p, type & 0x0f, o);
    if (type < 0xc0)
        return set_text(o, MSGPACK_OBJECT_STR, p, type & 0x1f);
    if (type < 0xe0)
        return decode_wide(zone, type, p, o);
    set_signed(o, (int8_t)type);
    return p;
}
