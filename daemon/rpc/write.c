/* The writing half of output.h: values as MessagePack. */
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

void rpc_write_nil(struct rpc_output *out)
{
    msgpack_packer p = packer(out);

    msgpack_pack_nil(&p);
}

void rpc_write_bool(struct rpc_output *out, bool value)
{
    msgpack_packer p = packer(out);

    if (value)
        msgpack_pack_true(&p);
    else
        msgpack_pack_false(&p);
}

void rpc_write_uint(struct rpc_output *out, uint64_t value)
{
    msgpack_packer p = packer(out);

    msgpack_pack_uint64(&p, value);
}

void rpc_write_int(struct rpc_output *out, int64_t value)
{
    msgpack_packer p = packer(out);

    msgpack_pack_int64(&p, value);
}

void rpc_write_double(struct rpc_output *out, double value)
{
    msgpack_packer p = packer(out);

    msgpack_pack_double(&p, value);
}

void rpc_write_text(struct rpc_output *out, const char *text)
{
    msgpack_packer p = packer(out);
    size_t n = strlen(text);

    msgpack_pack_str(&p, n);
    msgpack_pack_str_body(&p, text, n);
}

void rpc_write_array(struct rpc_output *out, uint32_t count)
{
    msgpack_packer p = packer(out);

    msgpack_pack_array(&p, count);
}

void rpc_write_map(struct rpc_output *out, uint32_t count)
{
    msgpack_packer p = packer(out);

    msgpack_pack_map(&p, count);
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

static void write_error_map(struct rpc_output *out, const struct error *e)
{
    rpc_write_map(out, 3);
    rpc_write_entry_text(out, "code", error_code_name(e->code));
    rpc_write_entry_text(out, "message", e->message);
    rpc_write_text(out, "detail");
    rpc_write_map(out, e->n_details);
    for (unsigned i = 0; i < e->n_details; i++) {
        rpc_write_text(out, e->details[i].key);
        if (e->details[i].is_text)
            rpc_write_text(out, e->details[i].text);
        else
            rpc_write_int(out, e->details[i].number);
    }
}

void rpc_write_error(struct rpc_output *out, uint32_t msgid, const struct error *e)
{
    rpc_write_array(out, 4);
    rpc_write_uint(out, 1);
    rpc_write_uint(out, msgid);
    write_error_map(out, e);
    rpc_write_nil(out);
}

void rpc_write_error_notification(struct rpc_output *out, const struct error *e)
{
    rpc_write_array(out, 3);
    rpc_write_uint(out, 2);
    rpc_write_text(out, "error");
    rpc_write_array(out, 1);
    write_error_map(out, e);
}
