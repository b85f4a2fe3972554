#include "proto/scan.h"

#include <string.h>

/* What a type byte announces: `header` bytes (itself included), then `payload` bytes, then `children` values. */
struct shape {
    unsigned header;
    uint64_t payload;
    uint64_t children;
};

void scan_reset(struct scan *s)
{
    memset(s, 0, sizeof(*s));
}

static uint64_t big_endian(const unsigned char *p, unsigned bytes)
{
    uint64_t v = 0;

    while (bytes--)
        v = v << 8 | *p++;
    return v;
}

enum length_unit { FIXED, BYTES, ELEMENTS, PAIRS, REFUSED };

/* Types 0xc0 to 0xdf: how wide the length field is (FIXED: how many bytes follow), and what it counts. */
static const struct {
    unsigned char width, unit;
} wide_types[32] = {
    {0, FIXED},    {0, REFUSED},  {0, FIXED},   {0, FIXED},                 /* nil, unused, false, true */
    {1, BYTES},    {2, BYTES},    {4, BYTES},                               /* bin */
    {0, REFUSED},  {0, REFUSED},  {0, REFUSED},                             /* ext */
    {4, FIXED},    {8, FIXED},                                              /* float */
    {1, FIXED},    {2, FIXED},    {4, FIXED},   {8, FIXED},                 /* uint */
    {1, FIXED},    {2, FIXED},    {4, FIXED},   {8, FIXED},                 /* int */
    {0, REFUSED},  {0, REFUSED},  {0, REFUSED}, {0, REFUSED}, {0, REFUSED}, /* fixext */
    {1, BYTES},    {2, BYTES},    {4, BYTES},                               /* str */
    {2, ELEMENTS}, {4, ELEMENTS},                                           /* array */
    {2, PAIRS},    {4, PAIRS},                                              /* map */
};

static enum scan_result read_shape(const unsigned char *p, size_t available, struct shape *ret)
{
    unsigned char type = *p;

    *ret = (struct shape){.header = 1};
    if (type < 0x80 || type >= 0xe0)
        return SCAN_COMPLETE; /* fixint */
    if (type < 0x90) {
        ret->children = 2 * (uint64_t)(type & 0x0f);
    } else if (type < 0xa0) {
        ret->children = type & 0x0f;
    } else if (type < 0xc0) {
        ret->payload = type & 0x1f;
    } else {
        unsigned width = wide_types[type - 0xc0].width;
        uint64_t length;

        switch (wide_types[type - 0xc0].unit) {
        case REFUSED:
            return SCAN_INVALID;
        case FIXED:
            ret->payload = width;
            return SCAN_COMPLETE;
        default:
            if (available < 1 + width)
                return SCAN_MORE;
            length = big_endian(p + 1, width);
            ret->header = 1 + width;
        }
        switch (wide_types[type - 0xc0].unit) {
        case BYTES:
            ret->payload = length;
            break;
        case ELEMENTS:
            ret->children = length;
            break;
        default:
            ret->children = 2 * length;
        }
    }
    return SCAN_COMPLETE;
}

/* Bytes of a fixint or fixstr, of which messages mostly consist; 0 for all others. */
static inline size_t small_value(unsigned char type)
{
    if (type < 0x80 || type >= 0xe0)
        return 1;
    return type >= 0xa0 && type < 0xc0 ? 1 + (size_t)(type & 0x1f) : 0;
}

/* A value without children has ended, and with it perhaps some that it is the last child of. */
static inline void end_value(struct scan *s)
{
    while (s->depth && --s->remaining[s->depth - 1] == 0)
        s->depth--;
}

static inline enum scan_result complete(struct scan *s)
{
    s->values++;
    return SCAN_COMPLETE;
}

enum scan_result scan_some(struct scan *s, const unsigned char *data, size_t length, size_t limit, uint64_t values)
{
    const size_t bound = length < limit ? length : limit;

    for (; s->position < length; values--, s->values++) {
        const size_t small = small_value(data[s->position]);
        struct shape shape;
        enum scan_result r;

        if (!values)
            return SCAN_PAUSED;
        if (small && small <= bound - s->position && s->depth) {
            s->position += small;
            end_value(s);
            if (!s->depth)
                return complete(s);
            continue;
        }
        r = read_shape(data + s->position, length - s->position, &shape);
        if (r != SCAN_COMPLETE)
            return r;
        /* Each child takes at least a byte, so a count is bounded by the room that the limit leaves. */
        if (s->position + shape.header > limit || shape.payload > limit - s->position - shape.header ||
            shape.children > limit - s->position - shape.header)
            return SCAN_TOO_LONG;
        if (shape.payload > length - s->position - shape.header)
            return SCAN_MORE;
        if (shape.children && s->depth == SCAN_MAX_DEPTH)
            return SCAN_TOO_DEEP;
        s->position += shape.header + (size_t)shape.payload;
        if (shape.children) {
            s->remaining[s->depth++] = (uint32_t)shape.children;
            continue;
        }
        end_value(s);
        if (!s->depth)
            return complete(s);
    }
    return length >= limit ? SCAN_TOO_LONG : SCAN_MORE;
}

enum scan_result scan_value(struct scan *s, const unsigned char *data, size_t length, size_t limit)
{
    return scan_some(s, data, length, limit, UINT64_MAX);
}

const char *scan_result_text(enum scan_result result)
{
    switch (result) {
    case SCAN_COMPLETE:
        return "complete";
    case SCAN_MORE:
    case SCAN_PAUSED:
        return "the message is incomplete";
    case SCAN_TOO_LONG:
        return "the message is longer than limits.message_bytes, or announces more than fits into it";
    case SCAN_TOO_DEEP:
        return "the message is nested deeper than limits.depth";
    case SCAN_INVALID:
        return "the bytes are no MessagePack of nil, bool, int, float, str, bin, array and map";
    }
    return "?";
}
