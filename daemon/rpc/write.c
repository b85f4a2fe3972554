/* The writing half of output.h: values as MessagePack, each in its shortest form. */
#include <string.h>

#include "codec/write.h"
#include "rpc/output.h"

/* A value is written where there is room for the longest of its kind, and the bytes that it took are kept. */
#define WRITE(out, room, write)                                                                                        \
    do {                                                                                                               \
        unsigned char *at = buffer_reserve(&(out)->bytes, (room));                                                     \
                                                                                                                       \
        if (!at)                                                                                                       \
            return; /* `failed` is set, and stays */                                                                   \
        write;                                                                                                         \
        (out)->bytes.end = (size_t)(at - (out)->bytes.data);                                                           \
    } while (0)

void rpc_write_nil(struct rpc_output *out)
{
    WRITE(out, CODEC_HEAD_MAX, codec_write_nil(&at));
}

void rpc_write_bool(struct rpc_output *out, bool value)
{
    WRITE(out, CODEC_HEAD_MAX, codec_write_bool(&at, value));
}

void rpc_write_uint(struct rpc_output *out, uint64_t value)
{
    WRITE(out, CODEC_HEAD_MAX, codec_write_uint64(&at, value));
}

void rpc_write_int(struct rpc_output *out, int64_t value)
{
    WRITE(out, CODEC_HEAD_MAX, codec_write_int64(&at, value));
}

void rpc_write_double(struct rpc_output *out, double value)
{
    WRITE(out, CODEC_HEAD_MAX, codec_write_double(&at, value));
}

void rpc_write_text(struct rpc_output *out, const char *text)
{
    const size_t length = strlen(text);

    WRITE(out, CODEC_HEAD_MAX + length, codec_write_text(&at, text, length));
}

void rpc_write_array(struct rpc_output *out, uint32_t count)
{
    WRITE(out, CODEC_HEAD_MAX, codec_write_array(&at, count));
}

void rpc_write_map(struct rpc_output *out, uint32_t count)
{
    WRITE(out, CODEC_HEAD_MAX, codec_write_map(&at, count));
}

void rpc_patch_array_head(struct rpc_output *out, size_t at, uint32_t n)
{
    unsigned char *p;

    if (out->bytes.failed)
        return;
    p = out->bytes.data + out->bytes.start + at - 4;
    for (unsigned i = 0; i < 4; i++)
        p[i] = (unsigned char)(n >> (24 - 8 * i));
}

void rpc_write_raw(struct rpc_output *out, const void *bytes, size_t length)
{
    buffer_append(&out->bytes, bytes, length);
}

/* `[1, msgid,` */
static void write_response(unsigned char **at, uint32_t msgid)
{
    codec_write_array(at, 4);
    codec_write_uint8(at, 1);
    codec_write_uint32(at, msgid);
}

void rpc_write_result(struct rpc_output *out, uint32_t msgid)
{
    WRITE(out, 4 * CODEC_HEAD_MAX, write_response(&at, msgid); codec_write_nil(&at));
}

/* The length of the UTF-8 character at `p`, or 0 where there is none. */
static unsigned utf8_length(const unsigned char *p)
{
    static const struct {
        unsigned char mask, lead, length;
        uint32_t least;
    } forms[] = {{0x80, 0x00, 1, 0}, {0xe0, 0xc0, 2, 0x80}, {0xf0, 0xe0, 3, 0x800}, {0xf8, 0xf0, 4, 0x10000}};

    for (unsigned i = 0; i < 4; i++) {
        uint32_t code = *p & (unsigned char)~forms[i].mask;

        if ((*p & forms[i].mask) != forms[i].lead)
            continue;
        for (unsigned j = 1; j < forms[i].length; j++) {
            if ((p[j] & 0xc0) != 0x80)
                return 0;
            code = code << 6 | (p[j] & 0x3f);
        }
        return code < forms[i].least || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : forms[i].length;
    }
    return 0;
}

void rpc_make_text(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p;) {
        const unsigned n = *p < 0x80 ? 1 : utf8_length(p);

        if (!n)
            *p = '?';
        p += n ? n : 1;
    }
}

void rpc_write_any_text(struct rpc_output *out, const char *text)
{
    const size_t length = strlen(text);

    WRITE(out, CODEC_HEAD_MAX + length, codec_write_text(&at, text, length); *at = 0;
          rpc_make_text((char *)at - length));
}

/* `reason` and `log` may be NULL. */
static void write_error_map(struct rpc_output *out, const struct error *e, const char *reason, const char *log)
{
    rpc_write_map(out, 3);
    rpc_write_text(out, "code");
    rpc_write_text(out, error_code_name(e->code));
    rpc_write_text(out, "message");
    rpc_write_text(out, e->message);
    rpc_write_text(out, "detail");
    rpc_write_map(out, e->n_details + (reason ? 1U : 0) + (log ? 1U : 0));
    for (unsigned i = 0; i < e->n_details; i++) {
        rpc_write_text(out, e->details[i].key);
        if (e->details[i].is_text)
            rpc_write_text(out, e->details[i].text);
        else if (e->details[i].is_bool)
            rpc_write_bool(out, e->details[i].number != 0);
        else
            rpc_write_int(out, e->details[i].number);
    }
    if (reason) {
        rpc_write_text(out, "reason");
        rpc_write_text(out, reason);
    }
    if (log) {
        rpc_write_text(out, "log");
        rpc_write_any_text(out, log);
    }
}

void rpc_write_error(struct rpc_output *out, uint32_t msgid, const struct error *e)
{
    WRITE(out, 3 * CODEC_HEAD_MAX, write_response(&at, msgid));
    write_error_map(out, e, NULL, NULL);
    rpc_write_nil(out);
}

void rpc_write_error_log(struct rpc_output *out, uint32_t msgid, const struct error *e, const char *reason,
                         const char *log)
{
    WRITE(out, 3 * CODEC_HEAD_MAX, write_response(&at, msgid));
    write_error_map(out, e, reason, log);
    rpc_write_nil(out);
}

void rpc_write_error_notification(struct rpc_output *out, const struct error *e)
{
    rpc_write_array(out, 3);
    rpc_write_uint(out, 2);
    rpc_write_text(out, "error");
    rpc_write_array(out, 1);
    write_error_map(out, e, NULL, NULL);
}
