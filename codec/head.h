/* The first byte of a MessagePack value says its type, and how long it is or how long its length is. */
#ifndef KOPS_CODEC_HEAD_H
#define KOPS_CODEC_HEAD_H

#include <stdint.h>
#include <string.h>

enum codec_type {
    CODEC_NIL,
    CODEC_BOOL,
    CODEC_UINT,
    CODEC_NEGATIVE, /* an integer below 0 */
    CODEC_FLOAT,
    CODEC_STR,
    CODEC_BIN,
    CODEC_ARRAY,
    CODEC_MAP,
    CODEC_REFUSED, /* ext types and 0xc1, which the wire has no use for */
};

struct codec_head {
    uint8_t type;  /* enum codec_type; a signed integer that may be negative is CODEC_NEGATIVE */
    uint8_t size;  /* bytes of the whole value where the first byte tells; 0: it does not, or there are children */
    uint8_t width; /* bytes of the number or of the length behind the first byte; 0: the number is in that byte */
    uint8_t value; /* that number */
};

extern const struct codec_head codec_heads[256];

/* A big-endian number of 1, 2, 4 or 8 bytes. */
static inline uint64_t codec_number(const unsigned char *p, unsigned width)
{
    uint64_t number = 0;

    for (unsigned i = 0; i < width; i++)
        number = number << 8 | p[i];
    return number;
}

#endif
