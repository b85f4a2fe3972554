/* Texts and lists of decoded MessagePack values, copied into an arena; for wire_info.c and wire_module.c. */
#ifndef KOPS_CLIENT_WIRE_LIST_H
#define KOPS_CLIENT_WIRE_LIST_H

#include "base/arena.h"
#include "wire_get.h"

/* Text, "" where there is none; NULL without memory. */
static inline const char *get_text(struct arena *a, const msgpack_object *o)
{
    if (!o || o->type != MSGPACK_OBJECT_STR)
        return "";
    return arena_text(a, o->via.str.ptr, o->via.str.size);
}

static inline size_t list_size(const msgpack_object *o)
{
    return o && o->type == MSGPACK_OBJECT_ARRAY ? o->via.array.size : 0;
}

/* A NULL-terminated list of texts; NULL without memory. */
static inline const char *const *get_texts(struct arena *a, const msgpack_object *o)
{
    size_t n = list_size(o);
    const char **texts;

    texts = arena_new(a, (n + 1) * sizeof(*texts));
    for (size_t i = 0; texts && i < n; i++) {
        texts[i] = get_text(a, &o->via.array.ptr[i]);
        if (!texts[i])
            return NULL;
    }
    return texts;
}

/* A NULL-terminated list, `read` makes each element; NULL without memory. */
typedef const void *read_element(struct arena *a, const msgpack_object *o);

static inline const void *get_list(struct arena *a, const msgpack_object *o, read_element *read)
{
    size_t n = list_size(o);
    const void **list = arena_new(a, (n + 1) * sizeof(*list));

    for (size_t i = 0; list && i < n; i++) {
        list[i] = read(a, &o->via.array.ptr[i]);
        if (!list[i])
            return NULL;
    }
    return list;
}

#endif
