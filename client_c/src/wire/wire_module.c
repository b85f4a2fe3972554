/* The replies of compile and cache as plain structs. */
#include <stdlib.h>
#include <string.h>

#include "base/fail.h"
#include "wire.h"
#include "wire_read.h"

/* ---- compile ---- */

/* A list of numbers; NULL without memory. */
static const uint32_t *read_numbers(struct arena *a, const unsigned char *value, size_t *ret_n)
{
    const uint32_t n = wire_elements(value, &value);
    uint32_t *numbers = arena_new(a, ((size_t)n + 1) * sizeof(*numbers));

    for (uint32_t i = 0; numbers && i < n; i++, value = codec_skip(value)) {
        uint64_t number = 0;

        wire_get_uint(value, &number);
        numbers[i] = (uint32_t)number;
    }
    *ret_n = n;
    return numbers;
}

static bool read_params(struct arena *a, const unsigned char *value, void *into)
{
    struct kops_entry *entry = into;

    entry->params = read_numbers(a, value, &entry->n_params);
    return entry->params != NULL;
}

/* As many as parameters, or none are told. */
static bool read_offsets(struct arena *a, const unsigned char *value, void *into)
{
    struct kops_entry *entry = into;
    size_t n;

    if (!value)
        return true;
    entry->offsets = read_numbers(a, value, &n);
    if (entry->offsets && n != entry->n_params)
        entry->offsets = NULL;
    return true;
}

static const struct wire_field entry_fields[] = {
    WIRE_FIELD(struct kops_entry, TEXT, "name", name),
    WIRE_FIELD(struct kops_entry, TEXT, "lowered", lowered),
    WIRE_FIELD(struct kops_entry, UINT, "registers", registers),
    WIRE_FIELD(struct kops_entry, UINT, "shared_bytes", shared_bytes),
    WIRE_FIELD(struct kops_entry, UINT, "local_bytes", local_bytes),
    WIRE_FIELD(struct kops_entry, UINT, "const_bytes", const_bytes),
    WIRE_FIELD(struct kops_entry, UINT, "max_threads", max_threads),
    {WIRE_KEY("params"), .type = WIRE_OTHER, .read = read_params}, /* two members of the entry */
    {WIRE_KEY("offsets"), .type = WIRE_OTHER, .read = read_offsets},
};
static const struct wire_record entry_record = WIRE_RECORD(struct kops_entry, entry_fields);

static const struct wire_field module_fields[] = {
    WIRE_NEEDED(struct wire_module, U64, "module", id),
    WIRE_FIELD(struct wire_module, TEXT, "key", info.key),
    WIRE_FIELD(struct wire_module, TEXT, "arch", info.arch),
    WIRE_FIELD(struct wire_module, TEXT, "compiler", info.compiler),
    WIRE_FIELD(struct wire_module, TEXT, "cached", info.cached),
    WIRE_FIELD(struct wire_module, F64, "compile_us", info.compile_us),
    WIRE_FIELD(struct wire_module, TEXT, "log", info.log),
    WIRE_FIELD(struct wire_module, U64, "image_bytes", info.image_bytes),
    WIRE_NESTED(struct wire_module, LIST, "entries", info.entries, entry_record),
};
static const struct wire_record module_record = WIRE_RECORD(struct wire_module, module_fields);

/* NULL where there is none, or no memory. */
static bool read_log(struct arena *a, const unsigned char *value, void *into)
{
    struct codec_item item;

    (void)a;
    if (!value || codec_type_of(value) != CODEC_STR)
        return true;
    codec_read(value, &item);
    *(char **)into = strndup(item.text, item.count);
    return true;
}

static char *copy_log(const unsigned char *error)
{
    static const struct wire_field log_fields[] = {{WIRE_KEY("log"), .type = WIRE_OTHER, .read = read_log}};
    static const struct wire_record detail = WIRE_RECORD(char *, log_fields);
    static const struct wire_field detail_fields[] = {{WIRE_KEY("detail"), .type = WIRE_MAP, .record = &detail}};
    static const struct wire_record record = WIRE_RECORD(char *, detail_fields);
    char *log = NULL;

    wire_read(NULL, error, &record, &log);
    return log;
}

void wire_reply_error(const struct native_reply *reply, struct kops_error *ret_error)
{
    wire_decode_error((const unsigned char *)reply->data, ret_error);
}

enum kops_code wire_read_module(const struct native_reply *reply, struct wire_module *ret, char **log,
                                struct kops_error *e)
{
    const unsigned char *data = (const unsigned char *)reply->data;

    *ret = (struct wire_module){.id = 0};
    if (reply->is_error) {
        wire_decode_error(data, e);
        *log = copy_log(data);
        return e->code;
    }
    if (wire_read(&ret->arena, data, &module_record, ret))
        return KOPS_OK;
    arena_free(&ret->arena);
    return fail(e, KOPS_ERR_BAD_REPLY, "the result of `compile` lacks a key, or there is no memory to read it");
}

/* ---- cache ---- */

static const struct wire_field cache_entry_fields[] = {
    WIRE_FIELD(struct kops_cache_entry, TEXT, "key", key),
    WIRE_FIELD(struct kops_cache_entry, TEXT, "arch", arch),
    WIRE_FIELD(struct kops_cache_entry, TEXT, "compiler", compiler),
    WIRE_FIELD(struct kops_cache_entry, TEXTS, "names", names),
    WIRE_FIELD(struct kops_cache_entry, U64, "bytes", bytes),
    WIRE_FIELD(struct kops_cache_entry, F64, "age_s", age_s),
    WIRE_FIELD(struct kops_cache_entry, BOOL, "in_memory", in_memory),
    WIRE_FIELD(struct kops_cache_entry, BOOL, "on_disk", on_disk),
    WIRE_FIELD(struct kops_cache_entry, TEXT, "from", from),
};
static const struct wire_record cache_entry_record = WIRE_RECORD(struct kops_cache_entry, cache_entry_fields);

bool wire_decode_cache_list(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    static const struct wire_field fields[] = {
        WIRE_NESTED(struct kops_cache, LIST, "entries", entries, cache_entry_record),
        WIRE_FIELD(struct kops_cache, U64, "bytes", bytes),
        WIRE_FIELD(struct kops_cache, U64, "limit", limit),
    };
    static const struct wire_record record = WIRE_RECORD(struct kops_cache, fields);
    struct wire_cache_list *w = into;

    (void)fds;
    (void)nfds;
    return wire_read(&w->arena, result, &record, &w->cache);
}

bool wire_decode_cache_file(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    struct raw {
        uint64_t fd, bytes;
    } raw;
    static const struct wire_field fields[] = {WIRE_NEEDED(struct raw, U64, "fd", fd),
                                               WIRE_NEEDED(struct raw, U64, "bytes", bytes)};
    static const struct wire_record record = WIRE_RECORD(struct raw, fields);
    struct wire_cache_file *w = into;

    if (!wire_read(NULL, result, &record, &raw) || !wire_take_fd(raw.fd, fds, nfds, &w->fd))
        return false;
    w->bytes = raw.bytes;
    return true;
}

bool wire_decode_cache_counts(const unsigned char *result, int *fds, unsigned nfds, void *into)
{
    static const struct wire_field fields[] = {
        WIRE_FIELD(struct wire_cache_counts, U64, "removed", removed),
        WIRE_FIELD(struct wire_cache_counts, U64, "imported", imported),
        WIRE_FIELD(struct wire_cache_counts, U64, "skipped", skipped),
    };
    static const struct wire_record record = WIRE_RECORD(struct wire_cache_counts, fields);

    (void)fds;
    (void)nfds;
    return wire_read(NULL, result, &record, into);
}
