/* Requests as bytes. Keys that have their default value are left out. */
#include <string.h>

#include "wire.h"
#include "wire_begin.h"

void wire_begin_request(struct bytes *b, uint32_t msgid, const char *method, size_t method_length)
{
    if (b->capacity - b->length < 512)
        bytes_grow(b, 512);
    mp_array(b, 4);
    mp_uint(b, 0);
    mp_uint(b, msgid);
    mp_text_of(b, method, method_length);
    mp_array(b, 1);
}

static void begin_notification(struct bytes *b, const char *method)
{
    mp_array(b, 3);
    mp_uint(b, 2);
    mp_text(b, method);
    mp_array(b, 1);
}

void wire_pack_device(struct bytes *b, const char *device)
{
    uint64_t index = 0;

    if (!*device || strspn(device, "0123456789") != strlen(device) || strlen(device) > 9) {
        mp_text(b, device);
        return;
    }
    for (const char *c = device; *c; c++)
        index = index * 10 + (uint64_t)(*c - '0');
    mp_uint(b, index);
}

void wire_pack_hello(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_hello *h = request;

    WIRE_BEGIN(out, msgid, "hello");
    mp_map(out, 2 + (h->shm ? 1U : 0U) + (h->isolate ? 1U : 0U));
    mp_pair_text(out, "client", h->name);
    mp_pair_uint(out, "protocol", WIRE_PROTOCOL);
    if (h->shm)
        mp_pair_bool(out, "shm", true);
    if (h->isolate)
        mp_pair_text(out, "isolate", h->isolate);
}

void wire_pack_plain(struct bytes *out, uint32_t msgid, const void *request)
{
    const char *method = request;

    wire_begin_request(out, msgid, method, strlen(method));
    mp_map(out, 0);
}

void wire_pack_register(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_register *r = request;

    WIRE_BEGIN(out, msgid, "register");
    mp_map(out, 2 + (r->handle ? 2U : 0U) + (r->fd ? 2U : 0U) + (r->device ? 1U : 0U) + (r->chunk_bytes ? 1U : 0U) +
                    (r->extend ? 1U : 0U) + (r->access == KOPS_ACCESS_R ? 1U : 0U));
    if (r->fd)
        mp_pair_uint(out, "nfds", 1);
    mp_pair_text(out, "kind", r->kind);
    mp_pair_uint(out, "size", r->size);
    if (r->handle) {
        mp_key(out, "handle");
        mp_binary(out, r->handle, WIRE_HANDLE_SIZE);
        mp_pair_uint(out, "alloc_id", r->alloc_id);
    }
    if (r->fd)
        mp_pair_uint(out, "fd", 0);
    if (r->chunk_bytes) {
        mp_key(out, "chunk_bytes");
        mp_array(out, 1);
        mp_uint(out, r->chunk_bytes);
    }
    if (r->extend)
        mp_pair_uint(out, "extend", r->extend);
    if (r->device) {
        mp_key(out, "device");
        wire_pack_device(out, r->device);
    }
    if (r->access == KOPS_ACCESS_R) {
        mp_key(out, "access");
        mp_key(out, "r");
    }
}

void wire_pack_alloc(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct wire_alloc *a = request;
    WIRE_BEGIN(out, msgid, "alloc");
    mp_map(out, a->device ? 2 : 1);
    mp_pair_uint(out, "size", a->size);
    if (a->device) {
        mp_key(out, "device");
        wire_pack_device(out, a->device);
    }
}

void wire_pack_stats(struct bytes *out, uint32_t msgid, const void *request)
{
    const struct kops_stats_filter *f = request;
    WIRE_BEGIN(out, msgid, "stats");
    mp_map(out, (size_t)(f->op != NULL) + (f->dtype != NULL) + (f->device != NULL) + f->reset);
    if (f->op)
        mp_pair_text(out, "op", f->op);
    if (f->dtype)
        mp_pair_text(out, "dtype", f->dtype);
    if (f->device) {
        mp_key(out, "device");
        wire_pack_device(out, f->device);
    }
    if (f->reset)
        mp_pair_bool(out, "reset", true);
}

void wire_pack_release(struct bytes *out, const char *what, uint64_t id)
{
    begin_notification(out, "release");
    mp_map(out, 1);
    mp_pair_uint(out, what, id);
}

void wire_pack_notification(struct bytes *out, const char *method, const void *params, size_t length)
{
    begin_notification(out, method);
    bytes_append(out, params, length);
}

void wire_pack_cancel(struct bytes *out, uint32_t msgid)
{
    begin_notification(out, "cancel");
    mp_map(out, 1);
    mp_pair_uint(out, "msgid", msgid);
}
