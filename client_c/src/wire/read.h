/* Results read straight into plain structs: a map's bytes are walked once, and each key that a table declares goes to
 * its member. Keys that no table has are ignored, as the protocol asks; a member whose key is missing, or has a value
 * of another type, has its type's default. The tables are rows of proto/generated/results.h (result.c). Bytes were
 * scanned. Thread: the arena's owner. */
#ifndef KOPS_CLIENT_WIRE_READ_H
#define KOPS_CLIENT_WIRE_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "codec/read.h"

enum wire_type {
    /* Plain members, and their defaults. */
    WIRE_NUMBER, /* uint64_t, int64_t or unsigned from a uint: 0 */
    WIRE_REAL,   /* double from any number: NAN */
    WIRE_BOOL,   /* bool: false */
    WIRE_TEXT,   /* const char *: a copy, "" */
    WIRE_CHARS,  /* char[]: a copy that is cut where it is longer, left as it is */
    WIRE_FD,     /* int: the index of a descriptor, -1; see wire_take_fds() */
    /* Structs of `record`. */
    WIRE_STRUCT,  /* one */
    WIRE_POINTER, /* a pointer to one: NULL */
    WIRE_LIST,    /* a NULL-terminated list of pointers: empty */
    /* Lists of plain things: empty. */
    WIRE_TEXTS,       /* const char *const *, NULL-terminated */
    WIRE_NAMED_TEXTS, /* a NULL-terminated list of pointers to {const char *name; const char *const *texts} */
    WIRE_COUNTERS,    /* the same of struct kops_counter */
    WIRE_NUMBERS,     /* uint32_t or int64_t [n] */
    WIRE_SHAPES,      /* struct kops_shape [n] */
    WIRE_FIGURES,     /* struct kops_figure [n] */
    WIRE_FIXED,       /* uint64_t[3] */
    WIRE_OTHER,       /* read by `read` */
};

struct wire_record;

struct wire_field {
    const char *key; /* these two first, as codec_find() wants them */
    uint32_t key_length;
    enum wire_type type;
    bool needed;         /* a map without it, or with another type there, is malformed */
    bool unset;          /* the default is all ones, of a pointer NULL */
    size_t offset, size; /* of the member; WIRE_NUMBERS: the size of an element */
    size_t count;        /* offset of the member with the list's length */
    const struct wire_record *record;
    void (*read)(const unsigned char *value, void *into); /* the whole struct; value NULL: the key is absent */
};

struct wire_record {
    size_t size;
    const struct wire_field *fields;
    unsigned n_fields;
    /* NULL, or reads what the fields do not say; `map` may be NULL, or no map. False: malformed, or no memory. */
    bool (*finish)(struct arena *a, const unsigned char *map, void *into);
};

/* Fills *into; `map` may be NULL, or no map, and then has no key. Returns false where a needed key is missing, or there
 * is no memory. */
bool wire_read(struct arena *a, const unsigned char *map, const struct wire_record *record, void *into);

/* Members that are WIRE_FD become descriptors of the message: taken ones are the receiver's, and -1 in `fds`. False:
 * there is no such descriptor; then none is taken. */
bool wire_take_fds(const struct wire_record *record, void *into, int *fds, unsigned nfds);

/* The value of a key by itself; NULL: none, or `map` is none. */
const unsigned char *wire_find(const unsigned char *map, const char *key);

/* Elements of a list, or pairs of a map; 0 where the value is NULL or something else. *ret_first is the first one. */
uint32_t wire_elements(const unsigned char *value, const unsigned char **ret_first);
uint32_t wire_pairs(const unsigned char *value, const unsigned char **ret_first);

/* A value by itself; false: it is NULL, or of another type. */
bool wire_get_uint(const unsigned char *value, uint64_t *ret);
bool wire_get_number(const unsigned char *value, double *ret);
bool wire_get_text(const unsigned char *value, struct codec_item *ret);
bool wire_text_is(const unsigned char *value, const char *text);

/* Copies; NULL: no memory. An empty one where the value is NULL, or of another type. */
const char *wire_copy_text(struct arena *a, const unsigned char *value);
void *wire_copy_numbers(struct arena *a, const unsigned char *value, size_t size, size_t *ret_n);

#endif
