/* Reads MessagePack in place: a value is a position in the message's bytes; nothing is allocated. The bytes must be
 * a value that codec/scan.h found complete; nothing is checked again. Thread: any. */
#ifndef KOPS_CODEC_READ_H
#define KOPS_CODEC_READ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum codec_type {
    CODEC_NIL,
    CODEC_BOOL,
    CODEC_UINT,
    CODEC_NEGATIVE, /* an integer below 0 */
    CODEC_FLOAT,
    CODEC_STR,
    CODEC_BIN,
    CODEC_ARRAY,
    CODEC_MAP,
    CODEC_REFUSED, /* ext types and 0xc1 */
};

/* Type and size of a value by its first byte, which has the size or the width of the size. */
struct codec_head {
    uint8_t type;  /* enum codec_type; CODEC_NEGATIVE for all signed integers */
    uint8_t size;  /* bytes of the whole value; 0: more than the first byte decides, or the value has children */
    uint8_t width; /* bytes of the number or length behind the first byte; 0: the first byte holds it, in `value` */
    uint8_t value;
};

extern const struct codec_head codec_heads[256];

/* A big-endian number of 1, 2, 4 or 8 bytes. */
static inline uint64_t codec_number(const unsigned char *p, unsigned width)
{
    uint64_t number = 0;

    for (unsigned i = 0; i < width; i++)
        number = number << 8 | p[i];
    return number;
}

struct codec_item {
    enum codec_type type;
    uint32_t count; /* bytes of a str or bin, elements of an array, pairs of a map */
    union {
        bool b;
        uint64_t u; /* CODEC_UINT */
        int64_t i;  /* CODEC_NEGATIVE, always below 0 */
        double f;
        const char *text; /* CODEC_STR, CODEC_BIN: not terminated */
    };
    const unsigned char *next; /* behind the value; of an array or map: its first child */
};

void codec_read(const unsigned char *at, struct codec_item *ret);

/* Returns the end of the value and of its children. */
const unsigned char *codec_skip(const unsigned char *at);

static inline enum codec_type codec_type_of(const unsigned char *at)
{
    return codec_heads[*at].type;
}

/* The first member of each row in a table of keys. */
struct codec_key {
    const char *key;
    uint32_t key_length;
};

/* Reads the key at `at` into *ret_key and searches rows that begin with a struct codec_key, or with members of the same
 * types. The search goes from row `from` to the end, then from the first row, since most keys come in the order of
 * declaration. Returns the row's number; -1: no row has the key, or the key is no str. */
int codec_find(const unsigned char *at, const void *rows, size_t row_size, unsigned n, unsigned from,
               struct codec_item *ret_key);

/* Returns the number of descriptors under the key `nfds` of the map, which ends at `end`. 0: there is no such key; -1:
 * the number is no integer from 0 to `max`. */
int codec_nfds(const unsigned char *map, const unsigned char *end, unsigned max);

#endif
