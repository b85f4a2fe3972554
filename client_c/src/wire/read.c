#include "read.h"

#include <math.h>
#include <string.h>

#include <kops/kops.h>

/* ---- values ---- */

static uint32_t children(const unsigned char *value, enum codec_type type, const unsigned char **ret_first)
{
    struct codec_item item;

    if (!value || codec_type_of(value) != type)
        return 0;
    codec_read(value, &item);
    *ret_first = item.next;
    return item.count;
}

uint32_t wire_elements(const unsigned char *value, const unsigned char **ret_first)
{
    return children(value, CODEC_ARRAY, ret_first);
}

uint32_t wire_pairs(const unsigned char *value, const unsigned char **ret_first)
{
    return children(value, CODEC_MAP, ret_first);
}

const unsigned char *wire_find(const unsigned char *map, const char *key)
{
    const struct codec_key row = {key, (uint32_t)strlen(key)};
    struct codec_item item;

    for (uint32_t pairs = wire_pairs(map, &map); pairs; pairs--) {
        if (codec_find(map, &row, sizeof(row), 1, 0, &item) == 0)
            return item.next;
        map = codec_skip(codec_skip(map));
    }
    return NULL;
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

bool wire_get_text(const unsigned char *value, struct codec_item *ret)
{
    if (!value || codec_type_of(value) != CODEC_STR)
        return false;
    codec_read(value, ret);
    return true;
}

bool wire_text_is(const unsigned char *value, const char *text)
{
    struct codec_item item;

    return wire_get_text(value, &item) && item.count == strlen(text) && !memcmp(item.text, text, item.count);
}

const char *wire_copy_text(struct arena *a, const unsigned char *value)
{
    struct codec_item item;

    return wire_get_text(value, &item) ? arena_text(a, item.text, item.count) : "";
}

void *wire_copy_numbers(struct arena *a, const unsigned char *value, size_t size, size_t *ret_n)
{
    const uint32_t n = wire_elements(value, &value);
    char *numbers = arena_new(a, ((size_t)n + 1) * size);

    for (uint32_t i = 0; numbers && i < n; i++, value = codec_skip(value)) {
        uint64_t number = 0;

        wire_get_uint(value, &number);
        if (size == sizeof(number))
            memcpy(numbers + i * size, &number, size);
        else
            memcpy(numbers + i * size, &(uint32_t){(uint32_t)number}, sizeof(uint32_t));
    }
    *ret_n = n;
    return numbers;
}

/* ---- lists; NULL: no memory ---- */

static const char *const *copy_texts(struct arena *a, const unsigned char *value)
{
    const uint32_t n = wire_elements(value, &value);
    const char **texts = arena_new(a, ((size_t)n + 1) * sizeof(*texts));

    for (uint32_t i = 0; texts && i < n; i++, value = codec_skip(value)) {
        texts[i] = wire_copy_text(a, value);
        if (!texts[i])
            return NULL;
    }
    return texts;
}

static const void *copy_list(struct arena *a, const unsigned char *value, const struct wire_record *record)
{
    const uint32_t n = wire_elements(value, &value);
    const void **list = arena_new(a, ((size_t)n + 1) * sizeof(*list));

    for (uint32_t i = 0; list && i < n; i++, value = codec_skip(value)) {
        void *element = arena_new(a, record->size);

        if (!element || !wire_read(a, value, record, element))
            return NULL;
        list[i] = element;
    }
    return list;
}

/* {name: [text]}. The structs of info.h that are read here have these members under more telling names. */
struct named_texts {
    const char *name;
    const char *const *texts;
};

_Static_assert(sizeof(struct named_texts) == sizeof(struct kops_op_variants) &&
                   sizeof(struct named_texts) == sizeof(struct kops_op_out_dtypes) &&
                   sizeof(struct named_texts) == sizeof(struct kops_op_in_dtypes),
               "read as struct named_texts");

static bool copy_pair(struct arena *a, enum wire_type type, const unsigned char *key, const unsigned char *value,
                      const void **ret)
{
    struct named_texts *t = type == WIRE_NAMED_TEXTS ? arena_new(a, sizeof(*t)) : NULL;
    struct kops_counter *c = type == WIRE_COUNTERS ? arena_new(a, sizeof(*c)) : NULL;

    if (t) {
        *ret = t;
        return (t->name = wire_copy_text(a, key)) && (t->texts = copy_texts(a, value));
    }
    if (!c)
        return false;
    wire_get_uint(value, &c->value);
    *ret = c;
    return (c->name = wire_copy_text(a, key));
}

static const void *copy_pairs(struct arena *a, enum wire_type type, const unsigned char *map)
{
    const uint32_t n = wire_pairs(map, &map);
    const void **list = arena_new(a, ((size_t)n + 1) * sizeof(*list));

    for (uint32_t i = 0; list && i < n; i++) {
        const unsigned char *value = codec_skip(map);

        if (!copy_pair(a, type, map, value, &list[i]))
            return NULL;
        map = codec_skip(value);
    }
    return list;
}

static const struct kops_shape *copy_shapes(struct arena *a, const unsigned char *value, size_t *ret_n)
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

static const struct kops_figure *copy_figures(struct arena *a, const unsigned char *map, size_t *ret_n)
{
    const uint32_t n = wire_pairs(map, &map);
    struct kops_figure *figures = arena_new(a, ((size_t)n + 1) * sizeof(*figures));

    for (uint32_t i = 0; figures && i < n; i++) {
        const unsigned char *value = codec_skip(map);

        figures[i] = (struct kops_figure){wire_copy_text(a, map), (double)NAN};
        if (!figures[i].name)
            return NULL;
        wire_get_number(value, &figures[i].value);
        map = codec_skip(value);
    }
    *ret_n = n;
    return figures;
}

static bool take_fixed(const unsigned char *value, uint64_t *sizes)
{
    const uint32_t n = wire_elements(value, &value);

    for (uint32_t i = 0; i < n && i < 3; i++, value = codec_skip(value))
        if (!wire_get_uint(value, &sizes[i]))
            return false;
    return true;
}

/* ---- members ---- */

enum outcome { TAKEN, OTHER_TYPE, FAILED };

static enum outcome kept(const void *made)
{
    return made ? TAKEN : FAILED;
}

/* Reads lists of plain values, and pointers to a struct; the value may be of any type. */
static enum outcome take_list(struct arena *a, const struct wire_field *f, const unsigned char *value, void *into,
                              const void **place)
{
    size_t *const n = (size_t *)(void *)((char *)into + f->count);
    void *one;

    switch (f->type) {
    case WIRE_POINTER:
        *place = one = arena_new(a, f->record->size);
        return one && wire_read(a, value, f->record, one) ? TAKEN : FAILED;
    case WIRE_NUMBERS:
        return kept(*place = wire_copy_numbers(a, value, f->size, n));
    case WIRE_SHAPES:
        return kept(*place = copy_shapes(a, value, n));
    case WIRE_FIGURES:
        return kept(*place = copy_figures(a, value, n));
    case WIRE_OTHER:
        f->read(value, into);
        return TAKEN;
    case WIRE_FIXED:
        return take_fixed(value, (uint64_t *)place) ? TAKEN : FAILED;
    default:
        return kept(*place = copy_pairs(a, f->type, value));
    }
}

static enum outcome take_text(struct arena *a, const struct wire_field *f, const struct codec_item *item, void *place)
{
    const size_t cut = item->count < f->size - 1 ? item->count : f->size - 1;

    if (item->type != CODEC_STR)
        return OTHER_TYPE;
    if (f->type == WIRE_TEXT)
        return kept(*(const char **)place = arena_text(a, item->text, item->count));
    memcpy(place, item->text, cut);
    ((char *)place)[cut] = 0;
    return TAKEN;
}

static enum outcome take_uint(const struct wire_field *f, const struct codec_item *item, void *place)
{
    if (item->type != CODEC_UINT)
        return OTHER_TYPE;
    if (f->type == WIRE_FD)
        *(int *)place = item->u < INT32_MAX ? (int)item->u : INT32_MAX;
    else if (f->size == sizeof(unsigned))
        *(unsigned *)place = (unsigned)item->u;
    else
        *(uint64_t *)place = item->u;
    return TAKEN;
}

static enum outcome take(struct arena *a, const struct wire_field *f, const unsigned char *value,
                         const struct codec_item *item, void *into)
{
    void *place = (char *)into + f->offset;

    switch (f->type) {
    case WIRE_NUMBER:
    case WIRE_FD:
        return take_uint(f, item, place);
    case WIRE_REAL:
        return take_number(item, place) ? TAKEN : OTHER_TYPE;
    case WIRE_BOOL:
        if (item->type != CODEC_BOOL)
            return OTHER_TYPE;
        *(bool *)place = item->b;
        return TAKEN;
    case WIRE_TEXT:
    case WIRE_CHARS:
        return take_text(a, f, item, place);
    case WIRE_STRUCT:
        if (item->type != CODEC_MAP)
            return OTHER_TYPE;
        return wire_read(a, value, f->record, place) ? TAKEN : FAILED;
    case WIRE_LIST:
        return item->type == CODEC_ARRAY ? kept(*(const void **)place = copy_list(a, value, f->record)) : OTHER_TYPE;
    case WIRE_TEXTS:
        return item->type == CODEC_ARRAY ? kept(*(const void **)place = copy_texts(a, value)) : OTHER_TYPE;
    default:
        return take_list(a, f, value, into, place);
    }
}

/* Sets the default of a member whose key is missing, or has another type. */
static bool set_default(struct arena *a, const struct wire_field *f, void *into)
{
    void *place = (char *)into + f->offset;

    switch (f->type) {
    case WIRE_NUMBER:
        memset(place, f->unset ? 0xff : 0, f->size);
        return true;
    case WIRE_FD:
        *(int *)place = -1;
        return true;
    case WIRE_REAL:
        *(double *)place = (double)NAN;
        return true;
    case WIRE_BOOL:
        *(bool *)place = false;
        return true;
    case WIRE_TEXT:
        *(const char **)place = f->unset ? NULL : "";
        return true;
    case WIRE_CHARS:
        return true;
    case WIRE_STRUCT:
        return wire_read(a, NULL, f->record, place);
    case WIRE_POINTER:
        *(const void **)place = NULL;
        return true;
    case WIRE_TEXTS:
    case WIRE_LIST:
        *(const void **)place = f->unset ? NULL : arena_new(a, sizeof(void *));
        return f->unset || *(const void **)place;
    default:
        return take_list(a, f, NULL, into, place) == TAKEN;
    }
}

bool wire_read(struct arena *a, const unsigned char *map, const struct wire_record *record, void *into)
{
    const unsigned char *at = map;
    uint64_t taken = 0;
    unsigned from = 0;

    for (uint32_t pairs = wire_pairs(map, &at); pairs; pairs--) {
        struct codec_item item;
        const int i = codec_find(at, record->fields, sizeof(record->fields[0]), record->n_fields, from, &item);
        const unsigned char *value = i < 0 ? codec_skip(at) : item.next;
        enum outcome outcome;

        codec_read(value, &item);
        at = item.type == CODEC_ARRAY || item.type == CODEC_MAP ? codec_skip(value) : item.next;
        if (i < 0 || taken & UINT64_C(1) << i)
            continue; /* a key is there twice: the first one counts */
        from = (unsigned)i + 1;
        outcome = take(a, &record->fields[i], value, &item, into);
        if (outcome == FAILED)
            return false;
        if (outcome == TAKEN)
            taken |= UINT64_C(1) << i;
    }
    for (unsigned i = 0; i < record->n_fields; i++) {
        const struct wire_field *f = &record->fields[i];

        if (!(taken & UINT64_C(1) << i) && (f->needed || !set_default(a, f, into)))
            return false;
    }
    return !record->finish || record->finish(a, map, into);
}

bool wire_take_fds(const struct wire_record *record, void *into, int *fds, unsigned nfds)
{
    bool used[16] = {false}, all = nfds <= sizeof(used);

    for (unsigned i = 0; i < record->n_fields; i++) {
        const struct wire_field *f = &record->fields[i];
        const int index = f->type == WIRE_FD ? *(int *)(void *)((char *)into + f->offset) : -1;

        if (index < 0)
            continue;
        all = all && (unsigned)index < nfds && fds[index] >= 0 && !used[index];
        if (all)
            used[index] = true;
    }
    for (unsigned i = 0; i < record->n_fields; i++) {
        const struct wire_field *f = &record->fields[i];
        int *place = (int *)(void *)((char *)into + f->offset);

        if (f->type != WIRE_FD || *place < 0)
            continue;
        if (all) {
            const int index = *place;

            *place = fds[index];
            fds[index] = -1;
        } else {
            *place = -1;
        }
    }
    return all;
}
