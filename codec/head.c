#include "codec/head.h"

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
