/* Writing MessagePack to a struct bytes, by codec/write.h. Thread: the bytes' owner. */
#ifndef KOPS_CLIENT_MP_H
#define KOPS_CLIENT_MP_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/bytes.h"
#include "codec/write.h"

/* A value is written where there is room for the longest of its kind, and the bytes that it took are kept. */
#define MP_WRITE(b, room, write)                                                                                       \
    do {                                                                                                               \
        unsigned char *at;                                                                                             \
                                                                                                                       \
        if ((room) > (b)->capacity - (b)->length && !bytes_grow((b), (room)))                                          \
            return;                                                                                                    \
        at = (unsigned char *)(b)->data + (b)->length;                                                                 \
        write;                                                                                                         \
        (b)->length = (size_t)(at - (unsigned char *)(b)->data);                                                       \
    } while (0)

static inline void mp_uint(struct bytes *b, uint64_t value)
{
    MP_WRITE(b, CODEC_HEAD_MAX, codec_write_uint64(&at, value));
}

static inline void mp_int(struct bytes *b, int64_t value)
{
    MP_WRITE(b, CODEC_HEAD_MAX, codec_write_int64(&at, value));
}

static inline void mp_double(struct bytes *b, double value)
{
    MP_WRITE(b, CODEC_HEAD_MAX, codec_write_double(&at, value));
}

static inline void mp_bool(struct bytes *b, bool value)
{
    MP_WRITE(b, CODEC_HEAD_MAX, codec_write_bool(&at, value));
}

static inline void mp_nil(struct bytes *b)
{
    MP_WRITE(b, CODEC_HEAD_MAX, codec_write_nil(&at));
}

static inline __attribute__((always_inline)) void mp_text_of(struct bytes *b, const char *text, size_t length)
{
    MP_WRITE(b, CODEC_HEAD_MAX + length, codec_write_text(&at, text, length));
}

static inline void mp_text(struct bytes *b, const char *text)
{
    mp_text_of(b, text, strlen(text));
}

/* A text that is known when compiling. */
#define mp_key(b, key) mp_text_of((b), (key), sizeof(key) - 1)

/* A key, which is known when compiling, with its value. Inlined, so that the key's length is a constant. */
static inline __attribute__((always_inline)) void mp_pair_uint(struct bytes *b, const char *key, uint64_t value)
{
    mp_text_of(b, key, strlen(key));
    mp_uint(b, value);
}

static inline __attribute__((always_inline)) void mp_pair_bool(struct bytes *b, const char *key, bool value)
{
    mp_text_of(b, key, strlen(key));
    mp_bool(b, value);
}

static inline __attribute__((always_inline)) void mp_pair_text(struct bytes *b, const char *key, const char *value)
{
    mp_text_of(b, key, strlen(key));
    mp_text(b, value);
}

static inline void mp_binary(struct bytes *b, const void *data, size_t length)
{
    MP_WRITE(b, CODEC_HEAD_MAX + length, codec_write_binary(&at, data, length));
}

static inline void mp_array(struct bytes *b, size_t n)
{
    MP_WRITE(b, CODEC_HEAD_MAX, codec_write_array(&at, n));
}

static inline void mp_map(struct bytes *b, size_t n)
{
    MP_WRITE(b, CODEC_HEAD_MAX, codec_write_map(&at, n));
}

#endif
