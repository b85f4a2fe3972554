/* The replies of compile and cache as plain structs. */
#include <msgpack.h>
#include <stdlib.h>

#include "base/fail.h"
#include "wire.h"
#include "wire_get.h"
#include "wire_list.h"

/* ---- compile ---- */

static const void *read_entry(struct arena *a, const msgpack_object *o)
{
    struct kops_entry *entry = arena_new(a, sizeof(*entry));
    const msgpack_object *params = map_find(o, "params");
    const size_t n = list_size(params);
    uint32_t *sizes = arena_new(a, (n + 1) * sizeof(*sizes));

    if (!entry || !sizes)
        return NULL;
    entry->name = get_text(a, map_find(o, "name"));
    entry->lowered = get_text(a, map_find(o, "lowered"));
    entry->registers = (unsigned)uint_or_zero(map_find(o, "registers"));
    entry->shared_bytes = (unsigned)uint_or_zero(map_find(o, "shared_bytes"));
    entry->local_bytes = (unsigned)uint_or_zero(map_find(o, "local_bytes"));
    entry->const_bytes = (unsigned)uint_or_zero(map_find(o, "const_bytes"));
    entry->max_threads = (unsigned)uint_or_zero(map_find(o, "max_threads"));
    entry->params = sizes;
    entry->n_params = n;
    for (size_t i = 0; i < n; i++)
        sizes[i] = (uint32_t)uint_or_zero(&params->via.array.ptr[i]);
    return entry->name && entry->lowered ? entry : NULL;
}

static bool read_module(const msgpack_object *o, struct wire_module *ret)
{
    struct kops_module_info *info = &ret->info;
    struct arena *a = &ret->arena;

    if (!get_uint(map_find(o, "module"), &ret->id))
        return false;
    info->key = get_text(a, map_find(o, "key"));
    info->arch = get_text(a, map_find(o, "arch"));
    info->compiler = get_text(a, map_find(o, "compiler"));
    info->cached = get_text(a, map_find(o, "cached"));
    info->log = get_text(a, map_find(o, "log"));
    info->compile_us = number_or_nan(map_find(o, "compile_us"));
    info->image_bytes = uint_or_zero(map_find(o, "image_bytes"));
    info->entries = get_list(a, map_find(o, "entries"), read_entry);
    return info->key && info->arch && info->compiler && info->cached && info->log && info->entries;
}

static char *copy_log(const msgpack_object *error)
{
    const msgpack_object *log = map_find(map_find(error, "detail"), "log");

    return log && log->type == MSGPACK_OBJECT_STR ? strndup(log->via.str.ptr, log->via.str.size) : NULL;
}

void wire_reply_error(const struct native_reply *reply, struct kops_error *ret_error)
{
    msgpack_unpacked unpacked;

    msgpack_unpacked_init(&unpacked);
    if (msgpack_unpack_next(&unpacked, reply->data, reply->length, NULL) == MSGPACK_UNPACK_SUCCESS)
        wire_decode_error(&unpacked.data, ret_error);
    else
        fail(ret_error, KOPS_ERR_NO_MEMORY, "there is no memory to read the daemon's error");
    msgpack_unpacked_destroy(&unpacked);
}

enum kops_code wire_read_module(const struct native_reply *reply, struct wire_module *ret, char **log,
                                struct kops_error *e)
{
    enum kops_code r = KOPS_OK;
    msgpack_unpacked unpacked;

    *ret = (struct wire_module){.id = 0};
    msgpack_unpacked_init(&unpacked);
    if (msgpack_unpack_next(&unpacked, reply->data, reply->length, NULL) != MSGPACK_UNPACK_SUCCESS) {
        r = fail(e, KOPS_ERR_NO_MEMORY, "there is no memory to read what the compiler said");
    } else if (reply->is_error) {
        wire_decode_error(&unpacked.data, e);
        r = e->code;
        *log = copy_log(&unpacked.data);
    } else if (!read_module(&unpacked.data, ret)) {
        arena_free(&ret->arena);
        r = fail(e, KOPS_ERR_BAD_REPLY, "the result of `compile` lacks a key, or there is no memory to read it");
    }
    msgpack_unpacked_destroy(&unpacked);
    return r;
}

/* ---- cache ---- */

static const void *read_cache_entry(struct arena *a, const msgpack_object *o)
{
    struct kops_cache_entry *entry = arena_new(a, sizeof(*entry));

    if (!entry)
        return NULL;
    entry->key = get_text(a, map_find(o, "key"));
    entry->arch = get_text(a, map_find(o, "arch"));
    entry->compiler = get_text(a, map_find(o, "compiler"));
    entry->names = get_texts(a, map_find(o, "names"));
    entry->bytes = uint_or_zero(map_find(o, "bytes"));
    entry->age_s = number_or_nan(map_find(o, "age_s"));
    entry->in_memory = get_bool(map_find(o, "in_memory"));
    entry->on_disk = get_bool(map_find(o, "on_disk"));
    return entry->key && entry->arch && entry->compiler && entry->names ? entry : NULL;
}

bool wire_decode_cache_list(const struct msgpack_object *result, int *fds, unsigned nfds, void *into)
{
    struct wire_cache_list *w = into;

    (void)fds;
    (void)nfds;
    w->cache.entries = get_list(&w->arena, map_find(result, "entries"), read_cache_entry);
    w->cache.bytes = uint_or_zero(map_find(result, "bytes"));
    w->cache.limit = uint_or_zero(map_find(result, "limit"));
    return w->cache.entries != NULL;
}

bool wire_decode_cache_file(const struct msgpack_object *result, int *fds, unsigned nfds, void *into)
{
    struct wire_cache_file *w = into;
    uint64_t fd;

    if (!get_uint(map_find(result, "fd"), &fd) || fd >= nfds || fds[fd] < 0 ||
        !get_uint(map_find(result, "bytes"), &w->bytes))
        return false;
    w->fd = fds[fd];
    fds[fd] = -1;
    return true;
}

bool wire_decode_cache_counts(const struct msgpack_object *result, int *fds, unsigned nfds, void *into)
{
    struct wire_cache_counts *w = into;

    (void)fds;
    (void)nfds;
    w->removed = uint_or_zero(map_find(result, "removed"));
    w->imported = uint_or_zero(map_find(result, "imported"));
    w->skipped = uint_or_zero(map_find(result, "skipped"));
    return true;
}
