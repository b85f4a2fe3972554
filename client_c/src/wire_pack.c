/* Requests as bytes. Keys that have their default value are left out. */
#include <msgpack.h>
#include <string.h>

#include "wire.h"

static int write_bytes(void *out, const char *data, size_t length)
{
    return bytes_append(out, data, length) ? 0 : -1;
}

static void pack_text(msgpack_packer *p, const char *text)
{
    msgpack_pack_str_with_body(p, text, strlen(text));
}

/* A key whose length is known when compiling: most bytes of a request are keys. */
#define pack_key(p, key) msgpack_pack_str_with_body((p), (key), sizeof(key) - 1)

static void pack_bool(msgpack_packer *p, bool value)
{
    value ? msgpack_pack_true(p) : msgpack_pack_false(p);
}

/* [0, msgid, method, [ …one map follows */
static void begin_request(msgpack_packer *p, struct bytes *out, uint32_t msgid, const char *method)
{
    msgpack_packer_init(p, out, write_bytes);
    msgpack_pack_array(p, 4);
    msgpack_pack_uint8(p, 0);
    msgpack_pack_uint32(p, msgid);
    pack_text(p, method);
    msgpack_pack_array(p, 1);
}

static void begin_notification(msgpack_packer *p, struct bytes *out, const char *method)
{
    msgpack_packer_init(p, out, write_bytes);
    msgpack_pack_array(p, 3);
    msgpack_pack_uint8(p, 2);
    pack_text(p, method);
    msgpack_pack_array(p, 1);
}

/* A UUID is text, an index ("0") a number. */
static void pack_device(msgpack_packer *p, const char *device)
{
    uint64_t index = 0;

    if (!*device || strspn(device, "0123456789") != strlen(device) || strlen(device) > 9) {
        pack_text(p, device);
        return;
    }
    for (const char *c = device; *c; c++)
        index = index * 10 + (uint64_t)(*c - '0');
    msgpack_pack_uint64(p, index);
}

void wire_pack_hello(struct bytes *out, uint32_t msgid, const void *request)
{
    msgpack_packer p;

    begin_request(&p, out, msgid, "hello");
    msgpack_pack_map(&p, 2);
    pack_key(&p, "client");
    pack_text(&p, request);
    pack_key(&p, "protocol");
    msgpack_pack_uint8(&p, WIRE_PROTOCOL);
}

void wire_pack_ping(struct bytes *out, uint32_t msgid, const void *request)
{
    msgpack_packer p;

    (void)request;
    begin_request(&p, out, msgid, "ping");
    msgpack_pack_map(&p, 0);
}

void wire_pack_trim(struct bytes *out, uint32_t msgid, const void *request)
{
    msgpack_packer p;

    (void)request;
    begin_request(&p, out, msgid, "trim");
    msgpack_pack_map(&p, 0);
}

void wire_pack_register(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_register *r = request;
    msgpack_packer p;

    begin_request(&p, out, msgid, "register");
    msgpack_pack_map(&p, 2 + (r->handle ? 2U : 0U) + (r->fd ? 2U : 0U) + (r->device ? 1U : 0U) +
                             (r->access == KOPS_ACCESS_R ? 1U : 0U));
    if (r->fd) {
        pack_key(&p, "nfds");
        msgpack_pack_uint8(&p, 1);
    }
    pack_key(&p, "kind");
    pack_text(&p, r->kind);
    pack_key(&p, "size");
    msgpack_pack_uint64(&p, r->size);
    if (r->handle) {
        pack_key(&p, "handle");
        msgpack_pack_bin_with_body(&p, r->handle, WIRE_HANDLE_SIZE);
        pack_key(&p, "alloc_id");
        msgpack_pack_uint64(&p, r->alloc_id);
    }
    if (r->fd) {
        pack_key(&p, "fd");
        msgpack_pack_uint8(&p, 0);
    }
    if (r->device) {
        pack_key(&p, "device");
        pack_device(&p, r->device);
    }
    if (r->access == KOPS_ACCESS_R) {
        pack_key(&p, "access");
        pack_key(&p, "r");
    }
}

void wire_pack_alloc(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_alloc *a = request;
    msgpack_packer p;

    begin_request(&p, out, msgid, "alloc");
    msgpack_pack_map(&p, a->device ? 2 : 1);
    pack_key(&p, "size");
    msgpack_pack_uint64(&p, a->size);
    if (a->device) {
        pack_key(&p, "device");
        pack_device(&p, a->device);
    }
}

static void pack_dimensions(msgpack_packer *p, const int64_t *values, unsigned rank)
{
    msgpack_pack_array(p, rank);
    for (unsigned i = 0; i < rank; i++)
        msgpack_pack_int64(p, values[i]);
}

static void pack_tensor(msgpack_packer *p, const struct kops_tensor *t, uint64_t id, uint64_t base_offset)
{
    uint64_t offset = t->offset + base_offset;

    msgpack_pack_map(p, 2 + (t->buffer ? 1U : 0U) + (offset ? 1U : 0U) + (t->has_strides ? 1U : 0U));
    if (t->buffer) {
        pack_key(p, "buffer");
        msgpack_pack_uint64(p, id);
    }
    if (offset) {
        pack_key(p, "offset");
        msgpack_pack_uint64(p, offset);
    }
    pack_key(p, "shape");
    pack_dimensions(p, t->shape, t->rank);
    if (t->has_strides) {
        pack_key(p, "strides");
        pack_dimensions(p, t->strides, t->rank);
    }
    pack_key(p, "dtype");
    pack_text(p, kops_dtype_name(t->dtype));
}

static void pack_attr(msgpack_packer *p, const struct kops_attr *a)
{
    pack_text(p, a->name);
    switch (a->type) {
    case KOPS_ATTR_BOOL:
        pack_bool(p, a->value.boolean);
        break;
    case KOPS_ATTR_INT:
        msgpack_pack_int64(p, a->value.integer);
        break;
    case KOPS_ATTR_FLOAT:
        msgpack_pack_double(p, a->value.real);
        break;
    case KOPS_ATTR_TEXT:
        pack_text(p, a->value.text);
        break;
    }
}

static void pack_run_options(msgpack_packer *p, const struct kops_options *o)
{
    if (o->device) {
        pack_key(p, "device");
        pack_device(p, o->device);
    }
    if (o->stream) {
        pack_key(p, "stream");
        msgpack_pack_unsigned_int(p, o->stream);
    }
    if (o->no_timing) {
        pack_key(p, "timing");
        msgpack_pack_false(p);
    }
    if (o->warmup) {
        pack_key(p, "warmup");
        msgpack_pack_uint32(p, o->warmup);
    }
    if (o->repeat) {
        pack_key(p, "repeat");
        msgpack_pack_uint32(p, o->repeat);
    }
    if (o->deadline_ms) {
        pack_key(p, "deadline_ms");
        msgpack_pack_uint32(p, o->deadline_ms);
    }
}

void wire_pack_run(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_run *w = request;
    const struct kops_request *r = w->request;
    const struct kops_options *o = &r->options;
    size_t n_attrs = r->n_attrs + (o->variant ? 1 : 0);
    msgpack_packer p;

    begin_request(&p, out, msgid, "run");
    msgpack_pack_map(&p, (size_t)3 + (n_attrs != 0) + (o->device != NULL) + (o->stream != 0) + o->no_timing +
                             (o->warmup != 0) + (o->repeat != 0) + (o->deadline_ms != 0));
    pack_key(&p, "op");
    pack_text(&p, r->op);
    pack_key(&p, "in");
    msgpack_pack_array(&p, r->n_inputs);
    for (size_t i = 0; i < r->n_inputs; i++)
        pack_tensor(&p, &r->inputs[i], w->ids[i], w->base_offsets[i]);
    pack_key(&p, "out");
    msgpack_pack_array(&p, r->n_outputs);
    for (size_t i = 0; i < r->n_outputs; i++)
        pack_tensor(&p, &r->outputs[i], w->ids[r->n_inputs + i], w->base_offsets[r->n_inputs + i]);
    if (n_attrs) {
        pack_key(&p, "attrs");
        msgpack_pack_map(&p, n_attrs);
        for (size_t i = 0; i < r->n_attrs; i++)
            pack_attr(&p, &r->attrs[i]);
        if (o->variant) {
            pack_key(&p, "variant");
            pack_text(&p, o->variant);
        }
    }
    pack_run_options(&p, o);
}

void wire_pack_stats(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct kops_stats_filter *f = request;
    msgpack_packer p;

    begin_request(&p, out, msgid, "stats");
    msgpack_pack_map(&p, (size_t)(f->op != NULL) + (f->dtype != NULL) + (f->device != NULL) + f->reset);
    if (f->op) {
        pack_key(&p, "op");
        pack_text(&p, f->op);
    }
    if (f->dtype) {
        pack_key(&p, "dtype");
        pack_text(&p, f->dtype);
    }
    if (f->device) {
        pack_key(&p, "device");
        pack_device(&p, f->device);
    }
    if (f->reset) {
        pack_key(&p, "reset");
        msgpack_pack_true(&p);
    }
}

void wire_pack_release(struct bytes *out, uint64_t buffer)
{
    msgpack_packer p;

    begin_notification(&p, out, "release");
    msgpack_pack_map(&p, 1);
    pack_key(&p, "buffer");
    msgpack_pack_uint64(&p, buffer);
}

void wire_pack_cancel(struct bytes *out, uint32_t msgid)
{
    msgpack_packer p;

    begin_notification(&p, out, "cancel");
    msgpack_pack_map(&p, 1);
    pack_key(&p, "msgid");
    msgpack_pack_uint32(&p, msgid);
}
