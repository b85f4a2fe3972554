/* Writing MessagePack, every value in its shortest form. Inline, since most of a request is short keys and small
 * numbers whose code the compiler knows. Thread: the bytes' owner. */
#ifndef KOPS_CLIENT_MP_H
#define KOPS_CLIENT_MP_H

#include <stdint.h>
#include <string.h>

#include "base/bytes.h"

static inline void mp_byte(struct bytes *b, unsigned value)
{
    unsigned char c = (unsigned char)value;

    bytes_append(b, &c, 1);
}

/* A type byte and a big-endian number of `n` bytes. */
static inline void mp_tagged(struct bytes *b, unsigned tag, uint64_t value, unsigned n)
{
    unsigned char c[9] = {(unsigned char)tag};

    for (unsigned i = 0; i < n; i++)
        c[1 + i] = (unsigned char)(value >> 8 * (n - 1 - i));
    bytes_append(b, c, 1 + n);
}

static inline void mp_uint(struct bytes *b, uint64_t value)
{
    if (value < 128)
        mp_byte(b, (unsigned)value);
    else if (value <= UINT8_MAX)
        mp_tagged(b, 0xcc, value, 1);
    else if (value <= UINT16_MAX)
        mp_tagged(b, 0xcd, value, 2);
    else if (value <= UINT32_MAX)
        mp_tagged(b, 0xce, value, 4);
    else
        mp_tagged(b, 0xcf, value, 8);
}

static inline void mp_int(struct bytes *b, int64_t value)
{
    if (value >= 0)
        mp_uint(b, (uint64_t)value);
    else if (value >= -32)
        mp_byte(b, (unsigned)(value & 0xff));
    else if (value >= INT8_MIN)
        mp_tagged(b, 0xd0, (uint64_t)value, 1);
    else if (value >= INT16_MIN)
        mp_tagged(b, 0xd1, (uint64_t)value, 2);
    else if (value >= INT32_MIN)
        mp_tagged(b, 0xd2, (uint64_t)value, 4);
    else
        mp_tagged(b, 0xd3, (uint64_t)value, 8);
}

static inline void mp_double(struct bytes *b, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    mp_tagged(b, 0xcb, bits, 8);
}

static inline void mp_bool(struct bytes *b, bool value)
{
    mp_byte(b, value ? 0xc3 : 0xc2);
}

static inline void mp_nil(struct bytes *b)
{
    mp_byte(b, 0xc0);
}

static inline void mp_text_of(struct bytes *b, const char *text, size_t length)
{
    if (length < 32)
        mp_byte(b, 0xa0 | (unsigned)length);
    else if (length <= UINT8_MAX)
        mp_tagged(b, 0xd9, length, 1);
    else if (length <= UINT16_MAX)
        mp_tagged(b, 0xda, length, 2);
    else
        mp_tagged(b, 0xdb, length, 4);
    bytes_append(b, text, length);
}

static inline void mp_text(struct bytes *b, const char *text)
{
    mp_text_of(b, text, strlen(text));
}

/* A text that is known when compiling. */
#define mp_key(b, key) mp_text_of((b), (key), sizeof(key) - 1)

static inline void mp_binary(struct bytes *b, const void *data, size_t length)
{
    if (length <= UINT8_MAX)
        mp_tagged(b, 0xc4, length, 1);
    else if (length <= UINT16_MAX)
        mp_tagged(b, 0xc5, length, 2);
    else
        mp_tagged(b, 0xc6, length, 4);
    bytes_append(b, data, length);
}

static inline void mp_array(struct bytes *b, size_t n)
{
    if (n < 16)
        mp_byte(b, 0x90 | (unsigned)n);
    else if (n <= UINT16_MAX)
        mp_tagged(b, 0xdc, n, 2);
    else
        mp_tagged(b, 0xdd, n, 4);
}

static inline void mp_map(struct bytes *b, size_t n)
{
    if (n < 16)
        mp_byte(b, 0x80 | (unsigned)n);
    else if (n <= UINT16_MAX)
        mp_tagged(b, 0xde, n, 2);
    else
        mp_tagged(b, 0xdf, n, 4);
}

#endif
