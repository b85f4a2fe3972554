/* Results read into plain structs: a map's bytes are walked once, and each key that a table declares goes to its
 * member. Other keys are ignored, as the protocol demands. A member whose key is missing, or has a value of another
 * type, gets its type's default. The tables are rows of proto/generated/results.h (result.c). The bytes must have been
 * scanned. Thread: the arena's owner. */
#ifndef KOPS_CLIENT_WIRE_READ_H
#define KOPS_CLIENT_WIRE_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "codec/read.h"

enum wire_type {
    /* Plain members, with their defaults. */
    WIRE_NUMBER, /* uint64_t, int64_t or unsigned from a uint: 0 */
    WIRE_REAL,   /* double from any number: NAN */
    WIRE_BOOL,   /* bool: false */
    WIRE_TEXT,   /* const char *: a copy, "" */
    WIRE_CHARS,  /* char[]: a copy, cut to fit; the default leaves it as it is */
    WIRE_FD,     /* int: the index of a descriptor; default -1; see wire_take_fds() */
    /* Structs, described by `record`. */
    WIRE_STRUCT,  /* a member */
    WIRE_POINTER, /* a pointer: NULL */
    WIRE_LIST,    /* a NULL-terminated list of pointers: empty */
    /* Lists of plain values: empty. */
    WIRE_TEXTS,       /* const char *const *, NULL-terminated */
    WIRE_NAMED_TEXTS, /* a NULL-terminated list of pointers to {const char *name; const char *const *texts} */
    WIRE_COUNTERS,    /* NULL-terminated pointers to struct kops_counter */
    WIRE_NUMBERS,     /* uint32_t or int64_t [n] */
    WIRE_SHAPES,      /* struct kops_shape [n] */
    WIRE_FIGURES,     /* struct kops_figure [n] */
    WIRE_FIXED,       /* uint64_t[3] */
    WIRE_OTHER,       /* anything else, read by `read` */
};

struct wire_record;

struct wire_field {
    const char *key; /* `key` and `key_length` come first, as codec_find() needs them */
    uint32_t key_length;
    enum wire_type type;
    bool needed;         /* a map without the key, or with another type there, is malformed */
    bool unset;          /* the default is all ones, or NULL for a pointer */
    size_t offset, size; /* place and size of the member; WIRE_NUMBERS: size of an element */
    size_t count;        /* offset of the member with the list's length */
    const struct wire_record *record;
    void (*read)(const unsigned char *value, void *into); /* gets the whole struct; value NULL: the key is absent */
};

struct wire_record {
    size_t size;
    const struct wire_field *fields;
    unsigned n_fields;
    /* Reads anything that the fields do not describe; NULL: nothing. `map` may be NULL, or no map. False: malformed, or
     * no memory. */
    bool (*finish)(struct arena *a, const unsigned char *map, void *into);
};

/* Fills *into. `map` may be NULL, or no map, and then has no key. Returns false where a needed key is missing, or there
 * is no memory. */
bool wire_read(struct arena *a, const unsigned char *map, const struct wire_record *record, void *into);

/* Replaces the indices in WIRE_FD members by the message's descriptors, which become the receiver's; `fds` gets -1.
 * False: there is no such descriptor; then none is taken. */
bool wire_take_fds(const struct wire_record *record, void *into, int *fds, unsigned nfds);

/* Finds the value of a key; NULL: none, or `map` is no map. */
const unsigned char *wire_find(const unsigned char *map, const char *key);

/* Returns the number of elements of a list, or pairs of a map; 0 for other values and NULL. *ret_first is the first
 * one. */
uint32_t wire_elements(const unsigned char *value, const unsigned char **ret_first);
uint32_t wire_pairs(const unsigned char *value, const unsigned char **ret_first);

/* Reads a value; false: it is NULL, or of another type. */
bool wire_get_uint(const unsigned char *value, uint64_t *ret);
bool wire_get_number(const unsigned char *value, double *ret);
bool wire_get_text(const unsigned char *value, struct codec_item *ret);
bool wire_text_is(const unsigned char *value, const char *text);

/* Copies a text, an empty one where the value is NULL, or of another type; NULL: no memory. */
const char *wire_copy_text(struct arena *a, const unsigned char *value);
void *wire_copy_numbers(struct arena *a, const unsigned char *value, size_t size, size_t *ret_n);

#endif
