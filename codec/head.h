/* Types and sizes of MessagePack values by their first byte, which has the size or the width of the size. */
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
    CODEC_REFUSED, /* ext types and 0xc1 */
};

struct codec_head {
    uint8_t type;  /* enum codec_type; CODEC_NEGATIVE for all signed integers */
    uint8_t size;  /* bytes of the whole value; 0: more than the first byte decides, or the value has children */
    uint8_t width; /* bytes of the number or length behind the first byte; 0: the first byte holds it, in `value` */
    uint8_t value;
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
