/* Results read straight into plain structs: a map's bytes are walked once, and each key that a table declares goes to
 * its member. Keys that no table has are ignored, as the protocol asks; a member whose key is missing, or has a value
 * of another type, has its type's default. Bytes were scanned. Thread: the arena's owner. */
#ifndef KOPS_CLIENT_WIRE_READ_H
#define KOPS_CLIENT_WIRE_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kops/kops.h>

#include "base/arena.h"
#include "codec/read.h"

enum wire_type {
    WIRE_U64,           /* uint64_t, 0 */
    WIRE_LIMIT,         /* uint64_t, KOPS_NO_LIMIT */
    WIRE_I64,           /* int64_t from a uint, 0 */
    WIRE_ID,            /* int64_t from a uint, -1 */
    WIRE_UINT,          /* unsigned, 0 */
    WIRE_F64,           /* double from any number, NAN */
    WIRE_BOOL,          /* bool, false */
    WIRE_TEXT,          /* const char *: a copy, "" */
    WIRE_OPTIONAL_TEXT, /* the same, NULL */
    WIRE_CHARS,         /* char[]: a copy that is cut where it is longer, left as it is */
    WIRE_TEXTS,         /* const char *const *: NULL-terminated copies, empty */
    WIRE_MAP,           /* a struct of `record` */
    WIRE_LIST,          /* a NULL-terminated list of pointers to structs of `record`, empty */
    WIRE_VALUE,         /* const unsigned char *: the value itself, NULL */
    WIRE_OTHER,         /* what `read` makes of the value */
};

enum {
    WIRE_SIZE_U64 = sizeof(uint64_t),
    WIRE_SIZE_LIMIT = sizeof(uint64_t),
    WIRE_SIZE_I64 = sizeof(int64_t),
    WIRE_SIZE_ID = sizeof(int64_t),
    WIRE_SIZE_UINT = sizeof(unsigned),
    WIRE_SIZE_F64 = sizeof(double),
    WIRE_SIZE_BOOL = sizeof(bool),
    WIRE_SIZE_TEXT = sizeof(char *),
    WIRE_SIZE_OPTIONAL_TEXT = sizeof(char *),
    WIRE_SIZE_TEXTS = sizeof(char **),
    WIRE_SIZE_VALUE = sizeof(unsigned char *)
};

struct wire_record;

/* `value` is NULL where the key is missing. Returns false without memory. */
typedef bool wire_read_other(struct arena *a, const unsigned char *value, void *into);

struct wire_field {
    const char *key; /* these two first, as codec_find() wants them */
    uint32_t key_length;
    enum wire_type type;
    bool required; /* a map without it, or with another type there, is malformed */
    size_t offset, size;
    const struct wire_record *record;
    wire_read_other *read;
};

struct wire_record {
    size_t size;
    const struct wire_field *fields;
    unsigned n_fields;
};

/* Rows of a table: the member of `owner` that a key goes to. WIRE_SIZED does not compile where the member has not the
 * size of its kind. */
#define WIRE_KEY(name)         .key = (name), .key_length = sizeof(name) - 1
#define WIRE_AT(owner, member) .offset = offsetof(owner, member), .size = sizeof(((owner *)0)->member)
#define WIRE_SIZED(owner, kind, member)                                                                                \
    .offset = offsetof(owner, member),                                                                                 \
    .size = sizeof(char[sizeof(((owner *)0)->member) == WIRE_SIZE_##kind ? WIRE_SIZE_##kind : -1])
#define WIRE_FIELD(owner, kind, name, member)                                                                          \
    {                                                                                                                  \
        WIRE_KEY(name), .type = WIRE_##kind, WIRE_SIZED(owner, kind, member)                                           \
    }
#define WIRE_NEEDED(owner, kind, name, member)                                                                         \
    {                                                                                                                  \
        WIRE_KEY(name), .type = WIRE_##kind, .required = true, WIRE_SIZED(owner, kind, member)                         \
    }
#define WIRE_NESTED(owner, kind, name, member, of)                                                                     \
    {                                                                                                                  \
        WIRE_KEY(name), .type = WIRE_##kind, .record = &(of), WIRE_AT(owner, member)                                   \
    }
#define WIRE_READ(owner, name, member, reader)                                                                         \
    {                                                                                                                  \
        WIRE_KEY(name), .type = WIRE_OTHER, .read = (reader), WIRE_AT(owner, member)                                   \
    }
#define WIRE_RECORD(owner, rows)                                                                                       \
    {                                                                                                                  \
        sizeof(owner), (rows), sizeof(rows) / sizeof((rows)[0])                                                        \
    }

/* Fills *into; `map` may be NULL, or no map, and then has no key. Returns false where a required key is missing, or
 * there is no memory. */
bool wire_read(struct arena *a, const unsigned char *map, const struct wire_record *record, void *into);

/* Elements of a list, or pairs of a map; 0 where the value is NULL or something else. *ret_first is the first one. */
uint32_t wire_elements(const unsigned char *value, const unsigned char **ret_first);
uint32_t wire_pairs(const unsigned char *value, const unsigned char **ret_first);

/* A value by itself; false, or NULL: it is of another type (or there is no memory). The value may be NULL. */
bool wire_get_uint(const unsigned char *value, uint64_t *ret);
bool wire_get_number(const unsigned char *value, double *ret);
const char *wire_get_text(struct arena *a, const unsigned char *value); /* "" where there is none */
const char *const *wire_get_texts(struct arena *a, const unsigned char *value);
const struct kops_shape *wire_get_shapes(struct arena *a, const unsigned char *value, size_t *ret_n);
bool wire_text_is(const unsigned char *value, const char *text);

#endif
