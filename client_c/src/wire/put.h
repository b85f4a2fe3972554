/* Writing MessagePack to a struct bytes (codec/write.h), with a function for each declared key of a request:
 * put_<method or map>_<key>(). Thread: the bytes' owner. */
#ifndef KOPS_CLIENT_PUT_H
#define KOPS_CLIENT_PUT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/bytes.h"
#include "codec/write.h"
#include "proto/generated/writers.h"

#define MP_INLINE static inline __attribute__((always_inline))

/* Writes a value where there is room for the longest of its kind, and keeps the bytes that it took. */
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

/* Inlined, so that the length of a key is a constant. */
MP_INLINE void mp_text_of(struct bytes *b, const char *text, size_t length)
{
    MP_WRITE(b, CODEC_HEAD_MAX + length, codec_write_text(&at, text, length));
}

static inline void mp_text(struct bytes *b, const char *text)
{
    mp_text_of(b, text, strlen(text));
}

static inline void mp_binary(struct bytes *b, const void *data, size_t length)
{
    MP_WRITE(b, CODEC_HEAD_MAX + length, codec_write_binary(&at, data, length));
}

static inline void mp_array(struct bytes *b, size_t n)
{
    MP_WRITE(b, CODEC_HEAD_MAX, codec_write_array(&at, n));
}

/* Writes a number where the text is one of up to `max` decimal digits; else the text. */
void mp_number_or_text(struct bytes *b, const char *text, size_t max);

/* A map that counts its pairs while they are written. */
struct mp_pairs {
    struct bytes *bytes;
    size_t head;
    size_t n;
};

MP_INLINE struct mp_pairs mp_open(struct bytes *b)
{
    const struct mp_pairs m = {b, b->length, 0};

    bytes_append(b, "\x80", 1);
    return m;
}

void mp_close_long(struct mp_pairs m);

/* Writes the map's head; no pair may be written later. */
MP_INLINE void mp_close(const struct mp_pairs *m)
{
    if (m->n < 16 && !m->bytes->failed)
        m->bytes->data[m->head] = (char)(0x80 | m->n);
    else
        mp_close_long(*m);
}

/* Writes a key; the caller writes its value next. */
MP_INLINE struct bytes *mp_key(struct mp_pairs *m, const char *key)
{
    m->n++;
    mp_text_of(m->bytes, key, strlen(key));
    return m->bytes;
}

/* Writes a device: a UUID as text, an index ("0") as a number. */
static inline void mp_device(struct bytes *b, const char *device)
{
    mp_number_or_text(b, device, 9);
}

/* ---- the declared keys. Optional ones are left out where the value is 0, NULL, or a bool's default. ---- */

#define WRITER(map, key, TYPE, required, fallback)                                                                     \
    MP_INLINE struct bytes *key_##map##_##key(struct mp_pairs *m) /* always written */                                 \
    {                                                                                                                  \
        return mp_key(m, #key);                                                                                        \
    }                                                                                                                  \
    WRITER_##TYPE(map, key, required, fallback)
/* A pair, whose value takes `length` bytes beside its head. */
#define WRITER_OF(map, key, type, there, length, write)                                                                \
    MP_INLINE void put_##map##_##key(struct mp_pairs *m, type value)                                                   \
    {                                                                                                                  \
        if (!(there))                                                                                                  \
            return;                                                                                                    \
        m->n++;                                                                                                        \
        MP_WRITE(m->bytes, 2 * CODEC_HEAD_MAX + sizeof(#key) + (length),                                               \
                 codec_write_text(&at, #key, sizeof(#key) - 1);                                                        \
                 write);                                                                                               \
    }
#define WRITER_UINT(map, key, required, fallback)                                                                      \
    WRITER_OF(map, key, uint64_t, (required) || value, 0, codec_write_uint64(&at, value))
#define WRITER_BOOL(map, key, required, fallback)                                                                      \
    WRITER_OF(map, key, bool, (required) || value != (fallback), 0, codec_write_bool(&at, value))
#define WRITER_STR(map, key, required, fallback)                                                                       \
    WRITER_OF(map, key, const char *, value, strlen(value), codec_write_text(&at, value, strlen(value)))
#define WRITER_FD(map, key, required, fallback) /* the message's one descriptor; its count is begun with the map */    \
    WRITER_OF(map, key, bool, value, 0, codec_write_uint64(&at, 0))
#define WRITER_DEVICE(map, key, required, fallback)                                                                    \
    MP_INLINE void put_##map##_##key(struct mp_pairs *m, const char *value)                                            \
    {                                                                                                                  \
        if (value)                                                                                                     \
            mp_device(key_##map##_##key(m), value);                                                                    \
    }
#define WRITER_LIST(map, key, required, fallback) /* `n` elements follow */                                            \
    MP_INLINE struct bytes *put_##map##_##key(struct mp_pairs *m, size_t n)                                            \
    {                                                                                                                  \
        mp_array(key_##map##_##key(m), n);                                                                             \
        return m->bytes;                                                                                               \
    }
#define WRITER_BIN(map, key, required, fallback)
#define WRITER_MAP(map, key, required, fallback)
#define WRITER_ANY(map, key, required, fallback)

KOPS_WRITERS(WRITER)

#endif
