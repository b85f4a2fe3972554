/* Writes MessagePack, every value in its shortest form: msgpack-c's templates, made to write straight into memory.
 * codec_write_<kind>(&at, value) writes at `at` and advances it. The caller has made sure of the space: CODEC_HEAD_MAX
 * bytes for a number or a head, and the length of a text or bin. Inline, since most keys and numbers of a message are
 * constants. Thread: any. */
#ifndef KOPS_CODEC_WRITE_H
#define KOPS_CODEC_WRITE_H

#include <msgpack/pack_define.h>
#include <msgpack/timestamp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { CODEC_HEAD_MAX = 9 };

#define msgpack_pack_inline_func(name)                static inline void codec_write##name
#define msgpack_pack_user                             unsigned char **
#define msgpack_pack_append_buffer(at, bytes, length) (memcpy(*(at), (bytes), (length)), *(at) += (length))
#include <msgpack/pack_template.h>

static inline void codec_write_bool(unsigned char **at, bool value)
{
    if (value)
        codec_write_true(at);
    else
        codec_write_false(at);
}

static inline void codec_write_text(unsigned char **at, const char *text, size_t length)
{
    codec_write_str(at, length);
    memcpy(*at, text, length);
    *at += length;
}

static inline void codec_write_binary(unsigned char **at, const void *data, size_t length)
{
    codec_write_bin(at, length);
    if (length) /* `data` may be NULL then */
        memcpy(*at, data, length);
    *at += length;
}

#endif
