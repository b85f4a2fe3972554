#include "codec/scan.h"

#include "codec/read.h"

void scan_reset(struct scan *s)
{
    memset(s, 0, sizeof(*s));
}

/* A value is `header` bytes, then `payload` bytes, then `children` values. */
struct shape {
    unsigned header;
    uint64_t payload;
    uint64_t children;
};

static enum scan_result read_shape(const unsigned char *p, size_t available, struct shape *ret)
{
    const struct codec_head head = codec_heads[*p];
    uint64_t length;

    *ret = (struct shape){.header = 1};
    if (head.type == CODEC_REFUSED)
        return SCAN_INVALID;
    if (head.size) {
        ret->payload = head.size - 1U;
        return SCAN_COMPLETE;
    }
    if (available < 1U + head.width)
        return SCAN_MORE;
    length = head.width ? codec_number(p + 1, head.width) : head.value;
    ret->header = 1U + head.width;
    if (head.type == CODEC_ARRAY)
        ret->children = length;
    else if (head.type == CODEC_MAP)
        ret->children = 2 * length;
    else
        ret->payload = length;
    return SCAN_COMPLETE;
}

enum scan_result scan_some(struct scan *s, const unsigned char *data, size_t length, size_t limit, uint64_t values)
{
    const size_t bound = length < limit ? length : limit;

    for (; s->position < length; values--) {
        const size_t size = codec_heads[data[s->position]].size;
        struct shape shape;
        enum scan_result r;

        if (!values)
            return SCAN_PAUSED;
        if (size && size <= bound - s->position) { /* the fast path: most values of a message */
            s->position += size;
        } else {
            r = read_shape(data + s->position, length - s->position, &shape);
            if (r != SCAN_COMPLETE)
                return r;
            /* Each child takes at least a byte, so the bytes left under the limit also bound the count. */
            if (s->position + shape.header > limit || shape.payload > limit - s->position - shape.header ||
                shape.children > limit - s->position - shape.header)
                return SCAN_TOO_LONG;
            if (shape.payload > length - s->position - shape.header)
                return SCAN_MORE;
            if (shape.children && s->depth == SCAN_MAX_DEPTH)
                return SCAN_TOO_DEEP;
            s->position += shape.header + (size_t)shape.payload;
            if (shape.children) {
                s->values++;
                s->remaining[s->depth++] = (uint32_t)shape.children;
                continue;
            }
        }
        s->values++;
        /* The end of a last child is the end of its parent, too. */
        while (s->depth && --s->remaining[s->depth - 1] == 0)
            s->depth--;
        if (!s->depth)
            return SCAN_COMPLETE;
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
