#include "compile/compiled.h"

#include <ctype.h>
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

/* All numbers are little-endian. Texts: their length in 4 bytes, then their bytes without an ending zero. */
static const char magic[8] = {'K', 'O', 'P', 'S', 'C', 'M', 'P', '1'};

struct compiled *compiled_new(void)
{
    struct compiled *c = calloc(1, sizeof(*c));

    if (c)
        atomic_init(&c->refs, 1);
    return c;
}

struct compiled *compiled_ref(struct compiled *c)
{
    atomic_fetch_add_explicit(&c->refs, 1, memory_order_relaxed);
    return c;
}

struct compiled *compiled_unref(struct compiled *c)
{
    if (!c || atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) != 1)
        return NULL;
    for (unsigned i = 0; c->entries && i < c->n_entries; i++) {
        free(c->entries[i].name);
        free(c->entries[i].lowered);
    }
    free(c->entries);
    free(c->log);
    free(c->image);
    free(c);
    return NULL;
}

static size_t text_length(const char *text)
{
    return text ? strlen(text) : 0;
}

size_t compiled_memory(const struct compiled *c)
{
    size_t bytes = sizeof(*c) + text_length(c->log) + 1 + c->image_size;

    for (unsigned i = 0; i < c->n_entries; i++)
        bytes += sizeof(c->entries[i]) + text_length(c->entries[i].name) + text_length(c->entries[i].lowered) + 2;
    return bytes;
}

static void put_number(struct buffer *into, uint64_t value, unsigned bytes)
{
    unsigned char raw[8];

    for (unsigned i = 0; i < bytes; i++)
        raw[i] = (unsigned char)(value >> (8 * i));
    buffer_append(into, raw, bytes);
}

static void put_text(struct buffer *into, const char *text)
{
    size_t n = text_length(text);

    put_number(into, n, 4);
    buffer_append(into, text ? text : "", n);
}

/* The numbers of an entry in the order in which they are written, parameters apart. */
static void entry_numbers(struct compiled_entry *entry, uint32_t *ret_numbers[6])
{
    ret_numbers[0] = &entry->registers;
    ret_numbers[1] = &entry->shared_bytes;
    ret_numbers[2] = &entry->local_bytes;
    ret_numbers[3] = &entry->const_bytes;
    ret_numbers[4] = &entry->max_threads;
    ret_numbers[5] = &entry->n_params;
}

static void put_entry(struct buffer *into, struct compiled_entry *entry)
{
    uint32_t *numbers[6];

    put_text(into, entry->name);
    put_text(into, entry->lowered);
    entry_numbers(entry, numbers);
    for (unsigned i = 0; i < 6; i++)
        put_number(into, *numbers[i], 4);
    for (unsigned i = 0; i < entry->n_params; i++) {
        put_number(into, entry->param_sizes[i], 4);
        put_number(into, entry->param_offsets[i], 4);
    }
}

void compiled_serialize(const struct compiled *c, struct buffer *into)
{
    uint64_t bits;

    memcpy(&bits, &c->compile_us, sizeof(bits));
    buffer_append(into, magic, sizeof(magic));
    buffer_append(into, c->key, sizeof(c->key));
    put_text(into, c->arch);
    put_text(into, c->compiler);
    put_number(into, bits, 8);
    put_text(into, c->log);
    put_number(into, c->n_entries, 4);
    for (unsigned i = 0; i < c->n_entries; i++)
        put_entry(into, &c->entries[i]);
    put_number(into, c->image_size, 4);
    buffer_append(into, c->image, c->image_size);
}

struct reader {
    const unsigned char *at;
    size_t left;
    const char *fault; /* the first one; NULL: none */
};

static const char no_memory[] = "no memory";

static void fail(struct reader *r, const char *fault)
{
    if (!r->fault)
        r->fault = fault;
    r->left = 0;
}

static const unsigned char *take(struct reader *r, size_t n)
{
    const unsigned char *at = r->at;

    if (r->fault || n > r->left) {
        fail(r, "it is cut off");
        return NULL;
    }
    r->at += n;
    r->left -= n;
    return at;
}

static uint64_t take_number(struct reader *r, unsigned bytes)
{
    const unsigned char *raw = take(r, bytes);
    uint64_t value = 0;

    for (unsigned i = 0; raw && i < bytes; i++)
        value |= (uint64_t)raw[i] << (8 * i);
    return value;
}

static char *take_text(struct reader *r, size_t max)
{
    size_t n = take_number(r, 4);
    const unsigned char *raw;
    char *copy;

    if (n > max)
        fail(r, "a text is too long");
    raw = take(r, n);
    if (!raw)
        return NULL;
    if (memchr(raw, 0, n)) {
        fail(r, "a text holds a zero byte");
        return NULL;
    }
    copy = malloc(n + 1);
    if (!copy) {
        fail(r, no_memory);
        return NULL;
    }
    memcpy(copy, raw, n);
    copy[n] = '\0';
    return copy;
}

static void take_word(struct reader *r, char *into, size_t size)
{
    char *text = take_text(r, size - 1);

    for (const char *c = text; c && *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("_.-+ ", *c))
            fail(r, "a name holds characters that no name has");
    if (text && !r->fault)
        memcpy(into, text, strlen(text) + 1);
    free(text);
}

static void take_params(struct reader *r, struct compiled_entry *entry)
{
    uint64_t end = 0;

    if (entry->n_params > COMPILED_MAX_PARAMS) {
        entry->n_params = 0;
        fail(r, "a kernel has too many parameters");
    }
    for (unsigned i = 0; i < entry->n_params && !r->fault; i++) {
        entry->param_sizes[i] = (uint32_t)take_number(r, 4);
        entry->param_offsets[i] = (uint32_t)take_number(r, 4);
        if (entry->param_offsets[i] < end)
            fail(r, "parameters overlap");
        end = (uint64_t)entry->param_offsets[i] + entry->param_sizes[i];
        if (end > COMPILED_MAX_PARAM_BYTES)
            fail(r, "parameters are too large");
    }
}

static void take_entry(struct reader *r, struct compiled_entry *entry)
{
    uint32_t *numbers[6];

    entry->name = take_text(r, COMPILED_MAX_NAME);
    entry->lowered = take_text(r, COMPILED_MAX_NAME);
    if (!r->fault && (!*entry->name || !*entry->lowered))
        fail(r, "a kernel has no name");
    entry_numbers(entry, numbers);
    for (unsigned i = 0; i < 6; i++)
        *numbers[i] = (uint32_t)take_number(r, 4);
    take_params(r, entry);
}

static void take_entries(struct reader *r, struct compiled *c)
{
    uint64_t n = take_number(r, 4);

    if (!r->fault && (n < 1 || n > COMPILED_MAX_ENTRIES))
        fail(r, "it has no kernel, or too many");
    if (r->fault)
        return;
    c->entries = calloc(n, sizeof(*c->entries));
    if (!c->entries) {
        fail(r, no_memory);
        return;
    }
    c->n_entries = (unsigned)n;
    for (unsigned i = 0; i < n && !r->fault; i++)
        take_entry(r, &c->entries[i]);
}

static void take_image(struct reader *r, struct compiled *c)
{
    size_t n = take_number(r, 4);
    const unsigned char *raw;

    if (!r->fault && (n < 1 || n > COMPILED_MAX_IMAGE))
        fail(r, "its image is empty or too large");
    raw = take(r, n);
    if (!raw)
        return;
    c->image = malloc(n);
    if (!c->image) {
        fail(r, no_memory);
        return;
    }
    memcpy(c->image, raw, n);
    c->image_size = n;
}

static void take_all(struct reader *r, struct compiled *c)
{
    const unsigned char *raw = take(r, sizeof(magic));
    uint64_t bits;

    if (raw && memcmp(raw, magic, sizeof(magic)) != 0)
        fail(r, "it is of another kind or version");
    raw = take(r, sizeof(c->key));
    if (raw)
        memcpy(c->key, raw, sizeof(c->key));
    take_word(r, c->arch, sizeof(c->arch));
    take_word(r, c->compiler, sizeof(c->compiler));
    bits = take_number(r, 8);
    memcpy(&c->compile_us, &bits, sizeof(bits));
    if (!r->fault && (!isfinite(c->compile_us) || c->compile_us < 0))
        fail(r, "its compile took no time that there is");
    c->log = take_text(r, COMPILED_MAX_LOG);
    take_entries(r, c);
    take_image(r, c);
    if (!r->fault && r->left)
        fail(r, "something stands behind its end");
}

int compiled_parse(const void *bytes, size_t size, struct compiled **ret_compiled, struct error *e)
{
    struct reader r = {bytes, size, NULL};
    struct compiled *c = compiled_new();

    if (!c)
        return error_set(e, ERROR_OUT_OF_MEMORY, "no memory for compiled code");
    take_all(&r, c);
    if (r.fault) {
        compiled_unref(c);
        return error_set(e, r.fault == no_memory ? ERROR_OUT_OF_MEMORY : ERROR_INVALID_ARGUMENT,
                         "the compiled code cannot be read: %s", r.fault);
    }
    *ret_compiled = c;
    return 0;
}

void key_to_hex(const unsigned char key[KEY_BYTES], char ret_hex[KEY_HEX + 1])
{
    sodium_bin2hex(ret_hex, KEY_HEX + 1, key, KEY_BYTES);
}

bool key_from_hex(const char *hex, unsigned char ret_key[KEY_BYTES])
{
    return strspn(hex, "0123456789abcdef") == KEY_HEX && !hex[KEY_HEX] &&
           sodium_hex2bin(ret_key, KEY_BYTES, hex, KEY_HEX, NULL, NULL, NULL) == 0;
}
