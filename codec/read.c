#include "codec/read.h"

/* Rows of 16 first bytes, which hold the numbers from `value` to `value` + 15. */
#define RUN(type, size, more, value)                                                                                   \
    ROW(type, size, more, value, 0), ROW(type, size, more, value, 1), ROW(type, size, more, value, 2),                 \
        ROW(type, size, more, value, 3), ROW(type, size, more, value, 4), ROW(type, size, more, value, 5),             \
        ROW(type, size, more, value, 6), ROW(type, size, more, value, 7), ROW(type, size, more, value, 8),             \
        ROW(type, size, more, value, 9), ROW(type, size, more, value, 10), ROW(type, size, more, value, 11),           \
        ROW(type, size, more, value, 12), ROW(type, size, more, value, 13), ROW(type, size, more, value, 14),          \
        ROW(type, size, more, value, 15)
/* `more`: the number in the first byte counts bytes behind it. */
#define ROW(type, size, more, value, i)                                                                                \
    {                                                                                                                  \
        CODEC_##type, (size) + ((more) ? (value) + (i) : 0), 0, (value) + (i)                                          \
    }
#define WIDE(type, size, width)                                                                                        \
    {                                                                                                                  \
        CODEC_##type, size, width, 0                                                                                   \
    }
#define REFUSED WIDE(REFUSED, 0, 0)

const struct codec_head codec_heads[256] = {
    /* 0x00: fixint */
    RUN(UINT, 1, 0, 0x00),
    RUN(UINT, 1, 0, 0x10),
    RUN(UINT, 1, 0, 0x20),
    RUN(UINT, 1, 0, 0x30),
    RUN(UINT, 1, 0, 0x40),
    RUN(UINT, 1, 0, 0x50),
    RUN(UINT, 1, 0, 0x60),
    RUN(UINT, 1, 0, 0x70),
    /* 0x80: fixmap, fixarray */
    RUN(MAP, 0, 0, 0),
    RUN(ARRAY, 0, 0, 0),
    /* 0xa0: fixstr */
    RUN(STR, 1, 1, 0),
    RUN(STR, 1, 1, 16),
    /* 0xc0: nil, unused, false, true */
    {CODEC_NIL, 1, 0, 0},
    REFUSED,
    {CODEC_BOOL, 1, 0, 0},
    {CODEC_BOOL, 1, 0, 1},
    /* 0xc4: bin, ext */
    WIDE(BIN, 0, 1),
    WIDE(BIN, 0, 2),
    WIDE(BIN, 0, 4),
    REFUSED,
    REFUSED,
    REFUSED,
    /* 0xca: float */
    WIDE(FLOAT, 5, 4),
    WIDE(FLOAT, 9, 8),
    /* 0xcc: uint, int */
    WIDE(UINT, 2, 1),
    WIDE(UINT, 3, 2),
    WIDE(UINT, 5, 4),
    WIDE(UINT, 9, 8),
    WIDE(NEGATIVE, 2, 1),
    WIDE(NEGATIVE, 3, 2),
    WIDE(NEGATIVE, 5, 4),
    WIDE(NEGATIVE, 9, 8),
    /* 0xd4: fixext */
    REFUSED,
    REFUSED,
    REFUSED,
    REFUSED,
    REFUSED,
    /* 0xd9: str, array, map */
    WIDE(STR, 0, 1),
    WIDE(STR, 0, 2),
    WIDE(STR, 0, 4),
    WIDE(ARRAY, 0, 2),
    WIDE(ARRAY, 0, 4),
    WIDE(MAP, 0, 2),
    WIDE(MAP, 0, 4),
    /* 0xe0: negative fixint */
    RUN(NEGATIVE, 1, 0, 0xe0),
    RUN(NEGATIVE, 1, 0, 0xf0),
};

static void read_signed(uint64_t bits, unsigned width, struct codec_item *ret)
{
    const unsigned unused = 64 - 8 * width;
    const int64_t value = (int64_t)(bits << unused) >> unused;

    ret->type = value < 0 ? CODEC_NEGATIVE : CODEC_UINT;
    ret->i = value;
}

static void read_float(uint64_t bits, unsigned width, struct codec_item *ret)
{
    const uint32_t half = (uint32_t)bits;
    float f;

    if (width == sizeof(f)) {
        memcpy(&f, &half, sizeof(f));
        ret->f = (double)f;
    } else {
        memcpy(&ret->f, &bits, sizeof(ret->f));
    }
}

void codec_read(const unsigned char *at, struct codec_item *ret)
{
    const struct codec_head head = codec_heads[*at];
    const uint64_t number = head.width ? codec_number(at + 1, head.width) : head.value;

    ret->type = head.type;
    ret->next = at + 1 + head.width;
    switch (head.type) {
    case CODEC_UINT:
        ret->u = number;
        break;
    case CODEC_STR:
    case CODEC_BIN:
        ret->count = (uint32_t)number;
        ret->text = (const char *)ret->next;
        ret->next += number;
        break;
    case CODEC_ARRAY:
    case CODEC_MAP:
        ret->count = (uint32_t)number;
        break;
    case CODEC_NEGATIVE:
        read_signed(number, head.width ? head.width : 1, ret);
        break;
    case CODEC_FLOAT:
        read_float(number, head.width, ret);
        break;
    default:
        ret->b = head.value;
    }
}

const unsigned char *codec_skip(const unsigned char *at)
{
    for (uint64_t left = 1; left; left--) {
        const struct codec_head head = codec_heads[*at];
        uint64_t number;

        if (head.size) {
            at += head.size;
            continue;
        }
        number = head.width ? codec_number(at + 1, head.width) : head.value;
        at += 1 + head.width;
        if (head.type == CODEC_ARRAY)
            left += number;
        else if (head.type == CODEC_MAP)
            left += 2 * number;
        else
            at += number;
    }
    return at;
}

int codec_find(const unsigned char *at, const void *rows, size_t row_size, unsigned n, unsigned from,
               struct codec_item *ret_key)
{
    const struct codec_head head = codec_heads[*at];

    if (head.type == CODEC_STR && !head.width)
        *ret_key = (struct codec_item){CODEC_STR, head.value, {.text = (const char *)at + 1}, at + head.size};
    else
        codec_read(at, ret_key);
    if (ret_key->type != CODEC_STR)
        return -1;
    for (unsigned i = 0, r = from < n ? from : 0; i < n; i++, r = r + 1 < n ? r + 1 : 0) {
        const struct codec_key *row = (const void *)((const char *)rows + r * row_size);

        if (row->key_length == ret_key->count && !memcmp(row->key, ret_key->text, ret_key->count))
            return (int)r;
    }
    return -1;
}

/* Searches for the bytes "nfds". memchr() is fast, and few messages have many an n. */
static bool may_have_nfds(const unsigned char *at, const unsigned char *end)
{
    for (unsigned tries = 0; tries < 8; tries++, at++) {
        at = memchr(at, 'n', (size_t)(end - at));
        if (!at || end - at < 4)
            return false;
        if (!memcmp(at, "nfds", 4))
            return true;
    }
    return memmem(at, (size_t)(end - at), "nfds", 4) != NULL;
}

int codec_nfds(const unsigned char *map, const unsigned char *end, unsigned max)
{
    struct codec_item item;

    /* Few messages have descriptors, and a search of the bytes is much faster than decoding each key. */
    if (!may_have_nfds(map, end))
        return 0;
    codec_read(map, &item);
    for (uint32_t pairs = item.count; pairs; pairs--) {
        bool found;

        map = item.next;
        codec_read(map, &item);
        found = item.type == CODEC_STR && item.count == 4 && !memcmp(item.text, "nfds", 4);
        map = codec_skip(map);
        if (found) {
            codec_read(map, &item);
            return item.type == CODEC_UINT && item.u <= max ? (int)item.u : -1;
        }
        item.next = codec_skip(map);
    }
    return 0;
}
