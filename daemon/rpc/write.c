/* The writing half of output.h: values as MessagePack. */
#include <endian.h>
#include <msgpack.h>
#include <string.h>

#include "rpc/output.h"
#include "rpc/value.h"

static int append(void *data, const char *bytes, size_t length)
{
    buffer_append(data, bytes, length);
    return 0;
}

static msgpack_packer packer(struct rpc_output *out)
{
    msgpack_packer p;

    msgpack_packer_init(&p, &out->bytes, append);
    return p;
}

/* Room for `n` bytes; what was written is committed at once, so exactly `n` must follow. NULL: it sticks to `failed`.
 */
static unsigned char *grow(struct rpc_output *out, size_t n)
{
    unsigned char *at = buffer_reserve(&out->bytes, n);

    if (at)
        out->bytes.end += n;
    return at;
}

static void write_byte(struct rpc_output *out, unsigned char byte)
{
    unsigned char *at = grow(out, 1);

    if (at)
        *at = byte;
}

/* A type byte and `bytes` (1, 2, 4 or 8) of a number behind it. */
static void write_wide(struct rpc_output *out, unsigned char type, uint64_t value, unsigned bytes)
{
    unsigned char *at = grow(out, 1 + bytes);
    uint64_t wire = htobe64(value);

    if (!at)
        return;
    *at = type;
    memcpy(at + 1, (unsigned char *)&wire + sizeof(wire) - bytes, bytes);
}

void rpc_write_nil(struct rpc_output *out)
{
    write_byte(out, 0xc0);
}

void rpc_write_bool(struct rpc_output *out, bool value)
{
    write_byte(out, value ? 0xc3 : 0xc2);
}

void rpc_write_uint(struct rpc_output *out, uint64_t value)
{
    if (value < 0x80)
        write_byte(out, (unsigned char)value);
    else if (value <= UINT8_MAX)
        write_wide(out, 0xcc, value, 1);
    else if (value <= UINT16_MAX)
        write_wide(out, 0xcd, value, 2);
    else if (value <= UINT32_MAX)
        write_wide(out, 0xce, value, 4);
    else
        write_wide(out, 0xcf, value, 8);
}

void rpc_write_int(struct rpc_output *out, int64_t value)
{
    if (value >= 0)
        rpc_write_uint(out, (uint64_t)value);
    else if (value >= -32)
        write_byte(out, (unsigned char)value);
    else if (value >= INT8_MIN)
        write_wide(out, 0xd0, (uint64_t)value, 1);
    else if (value >= INT16_MIN)
        write_wide(out, 0xd1, (uint64_t)value, 2);
    else if (value >= INT32_MIN)
        write_wide(out, 0xd2, (uint64_t)value, 4);
    else
        write_wide(out, 0xd3, (uint64_t)value, 8);
}

void rpc_write_double(struct rpc_output *out, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    write_wide(out, 0xcb, bits, 8);
}

void rpc_write_text(struct rpc_output *out, const char *text)
{
    size_t n = strlen(text);
    unsigned char *at;

    if (n >= 32) {
        msgpack_packer p = packer(out);

        msgpack_pack_str(&p, n);
        msgpack_pack_str_body(&p, text, n);
        return;
    }
    at = grow(out, 1 + n);
    if (!at)
        return;
    *at = (unsigned char)(0xa0 | n);
    memcpy(at + 1, text, n);
}

void rpc_write_array(struct rpc_output *out, uint32_t count)
{
    if (count < 16)
        write_byte(out, (unsigned char)(0x90 | count));
    else if (count <= UINT16_MAX)
        write_wide(out, 0xdc, count, 2);
    else
        write_wide(out, 0xdd, count, 4);
}

void rpc_write_map(struct rpc_output *out, uint32_t count)
{
    if (count < 16)
        write_byte(out, (unsigned char)(0x80 | count));
    else if (count <= UINT16_MAX)
        write_wide(out, 0xde, count, 2);
    else
        write_wide(out, 0xdf, count, 4);
}

size_t rpc_write_array_head(struct rpc_output *out)
{
    static const unsigned char head[5] = {0xdd};

    buffer_append(&out->bytes, head, sizeof(head));
    return buffer_length(&out->bytes) - 4;
}

void rpc_patch_array_head(struct rpc_output *out, size_t at, uint32_t n)
{
    unsigned char *p;

    if (out->bytes.failed)
        return;
    p = out->bytes.data + out->bytes.start + at;
    for (unsigned i = 0; i < 4; i++)
        p[i] = (unsigned char)(n >> (24 - 8 * i));
}

void rpc_write_raw(struct rpc_output *out, const void *bytes, size_t length)
{
    buffer_append(&out->bytes, bytes, length);
}

void rpc_write_value(struct rpc_output *out, const struct rpc_value *value)
{
    msgpack_packer p = packer(out);

    msgpack_pack_object(&p, *(const msgpack_object *)(const void *)value);
}

void rpc_write_entry_text(struct rpc_output *out, const char *key, const char *text)
{
    rpc_write_text(out, key);
    rpc_write_text(out, text);
}

void rpc_write_entry_uint(struct rpc_output *out, const char *key, uint64_t value)
{
    rpc_write_text(out, key);
    rpc_write_uint(out, value);
}

void rpc_write_entry_double(struct rpc_output *out, const char *key, double value)
{
    rpc_write_text(out, key);
    rpc_write_double(out, value);
}

void rpc_write_entry_bool(struct rpc_output *out, const char *key, bool value)
{
    rpc_write_text(out, key);
    rpc_write_bool(out, value);
}

void rpc_write_result(struct rpc_output *out, uint32_t msgid)
{
    rpc_write_array(out, 4);
    rpc_write_uint(out, 1);
    rpc_write_uint(out, msgid);
    rpc_write_nil(out);
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
        unsigned n = utf8_length(p);

        if (!n)
            *p = '?';
        p += n ? n : 1;
    }
}

void rpc_write_any_text(struct rpc_output *out, const char *text)
{
    char *copy = strdup(text);

    if (!copy) {
        out->bytes.failed = true;
        return;
    }
    rpc_make_text(copy);
    rpc_write_text(out, copy);
    free(copy);
}

/* `reason` and `log` may be NULL. */
static void write_error_map(struct rpc_output *out, const struct error *e, const char *reason, const char *log)
{
    rpc_write_map(out, 3);
    rpc_write_entry_text(out, "code", error_code_name(e->code));
    rpc_write_entry_text(out, "message", e->message);
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
    if (reason)
        rpc_write_entry_text(out, "reason", reason);
    if (log) {
        rpc_write_text(out, "log");
        rpc_write_any_text(out, log);
    }
}

void rpc_write_error(struct rpc_output *out, uint32_t msgid, const struct error *e)
{
    rpc_write_array(out, 4);
    rpc_write_uint(out, 1);
    rpc_write_uint(out, msgid);
    write_error_map(out, e, NULL, NULL);
    rpc_write_nil(out);
}

void rpc_write_error_log(struct rpc_output *out, uint32_t msgid, const struct error *e, const char *reason,
                         const char *log)
{
    rpc_write_array(out, 4);
    rpc_write_uint(out, 1);
    rpc_write_uint(out, msgid);
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
