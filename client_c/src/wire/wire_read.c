#include "wire_read.h"

#include <math.h>
#include <string.h>

uint32_t wire_elements(const unsigned char *value, const unsigned char **ret_first)
{
    struct codec_item item;

    if (!value || codec_type_of(value) != CODEC_ARRAY)
        return 0;
    codec_read(value, &item);
    *ret_first = item.next;
    return item.count;
}

uint32_t wire_pairs(const unsigned char *value, const unsigned char **ret_first)
{
    struct codec_item item;

    if (!value || codec_type_of(value) != CODEC_MAP)
        return 0;
    codec_read(value, &item);
    *ret_first = item.next;
    return item.count;
}

bool wire_get_uint(const unsigned char *value, uint64_t *ret)
{
    struct codec_item item;

    if (!value)
        return false;
    codec_read(value, &item);
    if (item.type != CODEC_UINT)
        return false;
    *ret = item.u;
    return true;
}

static bool take_number(const struct codec_item *item, double *ret)
{
    if (item->type == CODEC_FLOAT)
        *ret = item->f;
    else if (item->type == CODEC_UINT)
        *ret = (double)item->u;
    else if (item->type == CODEC_NEGATIVE)
        *ret = (double)item->i;
    else
        return false;
    return true;
}

bool wire_get_number(const unsigned char *value, double *ret)
{
    struct codec_item item;

    if (!value)
        return false;
    codec_read(value, &item);
    return take_number(&item, ret);
}

const char *wire_get_text(struct arena *a, const unsigned char *value)
{
    struct codec_item item;

    if (!value || codec_type_of(value) != CODEC_STR)
        return "";
    codec_read(value, &item);
    return arena_text(a, item.text, item.count);
}

const char *const *wire_get_texts(struct arena *a, const unsigned char *value)
{
    uint32_t n = wire_elements(value, &value);
    const char **texts = arena_new(a, ((size_t)n + 1) * sizeof(*texts));

    for (uint32_t i = 0; texts && i < n; i++, value = codec_skip(value)) {
        texts[i] = wire_get_text(a, value);
        if (!texts[i])
            return NULL;
    }
    return texts;
}

const struct kops_shape *wire_get_shapes(struct arena *a, const unsigned char *value, size_t *ret_n)
{
    const uint32_t n = wire_elements(value, &value);
    struct kops_shape *shapes = arena_new(a, ((size_t)n + 1) * sizeof(*shapes));

    for (uint32_t i = 0; shapes && i < n; i++, value = codec_skip(value)) {
        const unsigned char *size = NULL;
        const uint32_t rank = wire_elements(value, &size);

        shapes[i].rank = rank < KOPS_MAX_RANK ? rank : KOPS_MAX_RANK;
        for (unsigned d = 0; d < shapes[i].rank; d++, size = codec_skip(size)) {
            uint64_t dim = 0;

            wire_get_uint(size, &dim);
            shapes[i].dims[d] = (int64_t)dim;
        }
    }
    *ret_n = n;
    return shapes;
}

bool wire_text_is(const unsigned char *value, const char *text)
{
    struct codec_item item;

    if (!value)
        return false;
    codec_read(value, &item);
    return item.type == CODEC_STR && item.count == strlen(text) && !memcmp(item.text, text, item.count);
}

static const void *const *read_list(struct arena *a, const unsigned char *value, const struct wire_record *record)
{
    uint32_t n = wire_elements(value, &value);
    const void **list = arena_new(a, ((size_t)n + 1) * sizeof(*list));

    for (uint32_t i = 0; list && i < n; i++, value = codec_skip(value)) {
        void *element = arena_new(a, record->size);

        if (!element || !wire_read(a, value, record, element))
            return NULL;
        list[i] = element;
    }
    return list;
}

/* The member of a key that is missing, or has another type. */
static bool set_default(struct arena *a, const struct wire_field *f, void *place)
{
    switch (f->type) {
    case WIRE_LIMIT:
        *(uint64_t *)place = KOPS_NO_LIMIT;
        return true;
    case WIRE_ID:
        *(int64_t *)place = -1;
        return true;
    case WIRE_F64:
        *(double *)place = (double)NAN;
        return true;
    case WIRE_TEXT:
        *(const char **)place = "";
        return true;
    case WIRE_TEXTS:
    case WIRE_LIST:
        return (*(const void **)place = arena_new(a, sizeof(void *))) != NULL;
    case WIRE_MAP:
        return wire_read(a, NULL, f->record, place);
    case WIRE_OTHER:
        return f->read(a, NULL, place);
    case WIRE_CHARS:
        return true;
    default:
        memset(place, 0, f->size);
        return true;
    }
}

enum outcome { TAKEN, OTHER_TYPE, NO_MEMORY };

static enum outcome kept(const void *made)
{
    return made ? TAKEN : NO_MEMORY;
}

static enum outcome take_text(struct arena *a, const struct wire_field *f, const struct codec_item *item, void *place)
{
    const size_t cut = item->count < f->size - 1 ? item->count : f->size - 1;

    if (item->type != CODEC_STR)
        return OTHER_TYPE;
    if (f->type != WIRE_CHARS)
        return kept(*(const char **)place = arena_text(a, item->text, item->count));
    memcpy(place, item->text, cut);
    ((char *)place)[cut] = 0;
    return TAKEN;
}

static enum outcome take_plain(const struct wire_field *f, const struct codec_item *item, void *place)
{
    if (f->type == WIRE_F64)
        return take_number(item, place) ? TAKEN : OTHER_TYPE;
    if (item->type != (f->type == WIRE_BOOL ? CODEC_BOOL : CODEC_UINT))
        return OTHER_TYPE;
    if (f->type == WIRE_BOOL)
        *(bool *)place = item->b;
    else if (f->type == WIRE_UINT)
        *(unsigned *)place = (unsigned)item->u;
    else
        *(uint64_t *)place = item->u;
    return TAKEN;
}

static enum outcome take(struct arena *a, const struct wire_field *f, const unsigned char *value,
                         const struct codec_item *item, void *place)
{
    switch (f->type) {
    case WIRE_TEXT:
    case WIRE_OPTIONAL_TEXT:
    case WIRE_CHARS:
        return take_text(a, f, item, place);
    case WIRE_TEXTS:
        return item->type == CODEC_ARRAY ? kept(*(const void **)place = wire_get_texts(a, value)) : OTHER_TYPE;
    case WIRE_LIST:
        return item->type == CODEC_ARRAY ? kept(*(const void **)place = read_list(a, value, f->record)) : OTHER_TYPE;
    case WIRE_MAP:
        if (item->type != CODEC_MAP)
            return OTHER_TYPE;
        return wire_read(a, value, f->record, place) ? TAKEN : NO_MEMORY;
    case WIRE_VALUE:
        *(const unsigned char **)place = value;
        return TAKEN;
    case WIRE_OTHER:
        return f->read(a, value, place) ? TAKEN : NO_MEMORY;
    default:
        return take_plain(f, item, place);
    }
}

bool wire_read(struct arena *a, const unsigned char *map, const struct wire_record *record, void *into)
{
    uint64_t taken = 0;
    unsigned from = 0;

    for (uint32_t pairs = wire_pairs(map, &map); pairs; pairs--) {
        struct codec_item item;
        const int i = codec_find(map, record->fields, sizeof(record->fields[0]), record->n_fields, from, &item);
        const unsigned char *value = i < 0 ? codec_skip(map) : item.next;
        enum outcome outcome;

        codec_read(value, &item);
        map = item.type == CODEC_ARRAY || item.type == CODEC_MAP ? codec_skip(value) : item.next;
        if (i < 0 || taken & UINT64_C(1) << i)
            continue; /* of a key that is there twice the first one counts */
        from = (unsigned)i + 1;
        outcome = take(a, &record->fields[i], value, &item, (char *)into + record->fields[i].offset);
        if (outcome == NO_MEMORY)
            return false;
        if (outcome == TAKEN)
            taken |= UINT64_C(1) << i;
    }
    for (unsigned i = 0; i < record->n_fields; i++) {
        const struct wire_field *f = &record->fields[i];

        if (taken & UINT64_C(1) << i)
            continue;
        if (f->required || !set_default(a, f, (char *)into + f->offset))
            return false;
    }
    return true;
}
