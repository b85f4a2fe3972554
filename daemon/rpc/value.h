/* Values of a message, and checking maps of them against declared fields. A value is a position in the message's own
 * bytes, which were scanned: nothing is allocated, and it lives as long as they. Thread: the owner's. */
#ifndef KOPS_RPC_VALUE_H
#define KOPS_RPC_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util/error.h"

struct rpc_value; /* opaque: points to the first byte of a scanned value */

enum rpc_type {
    RPC_UINT,
    RPC_INT,
    RPC_FLOAT, /* integers are accepted, too */
    RPC_BOOL,
    RPC_STR,
    RPC_BIN,
    RPC_MAP,
    RPC_LIST,
    RPC_DEVICE, /* str or uint */
    RPC_ANY,    /* the handler checks it */
};

struct rpc_field {
    /* `key` and `key_length` come first, as codec_find() needs them; key_length is used for maps only. */
    const char *key;
    uint32_t key_length;
    enum rpc_type type;
    bool required;
    uint64_t min, max; /* limits of an RPC_UINT; no other type has any */
    uint64_t fallback; /* value of an absent RPC_UINT or RPC_BOOL */
};

/* Makes a struct rpc_field from a row of proto/generated/methods.h. */
#define RPC_FIELD(key_, type_, required_, min_, max_, default_)                                                        \
    {.key = #key_,                                                                                                     \
     .key_length = sizeof(#key_) - 1,                                                                                  \
     .type = RPC_##type_,                                                                                              \
     .required = (required_),                                                                                          \
     .min = (min_),                                                                                                    \
     .max = (max_),                                                                                                    \
     .fallback = (default_)},

struct rpc_arg {
    bool present;
    bool b;          /* RPC_BOOL */
    uint32_t length; /* bytes of a text; entries of a map or list */
    union {
        uint64_t u; /* RPC_UINT; RPC_DEVICE when text is NULL */
        int64_t i;  /* RPC_INT */
        double f;   /* RPC_FLOAT */
    };
    const char *text;              /* RPC_STR, RPC_BIN, RPC_DEVICE: not terminated */
    const struct rpc_value *items; /* RPC_LIST: see rpc_list_next(); RPC_MAP, RPC_ANY: the value itself */
};

/* Matches the map's keys with `fields` and fills args[i] for fields[i]. `path` is put before the keys in errors
 * ("in[0].", or "" at the top, where the reserved key `nfds` is allowed too). Errors: unknown_key (also for a key given
 * twice), missing_key, wrong_type (also for a value that is no map: the key is the path without its dot),
 * out_of_range. */
int rpc_decode_map(const struct rpc_value *map, const struct rpc_field *fields, unsigned n_fields, const char *path,
                   struct rpc_arg *args, struct error *e);

/* Decodes a value by one field, as above. */
int rpc_decode_value(const struct rpc_value *value, const struct rpc_field *field, const char *path,
                     struct rpc_arg *ret_arg, struct error *e);

/* Decodes the integers of a list, as above; `key` is the list's. `into` has room for all of them. */
int rpc_decode_ints(const struct rpc_arg *list, const char *path, const char *key, int64_t *into, struct error *e);

/* Returns the list's first element (`element` is NULL), or the one after `element`. The caller counts: arg->length. */
const struct rpc_value *rpc_list_next(const struct rpc_arg *list, const struct rpc_value *element);

/* Walks a map's entries. */
struct rpc_entries {
    const struct rpc_value *next; /* a key */
    uint32_t left;
};

struct rpc_entry {
    const char *key; /* not terminated; NULL when it is no str */
    uint32_t length;
    const struct rpc_value *value;
};

struct rpc_entries rpc_map_entries(const struct rpc_value *map); /* NULL: none */
bool rpc_map_next(struct rpc_entries *entries, struct rpc_entry *ret_entry);

bool rpc_is_map(const struct rpc_value *value);
bool rpc_is_nil(const struct rpc_value *value);
bool rpc_is_bool(const struct rpc_value *value);
bool rpc_is_integer(const struct rpc_value *value);
bool rpc_is_text(const struct rpc_value *value);

/* True when the arg's text is exactly `text`. */
bool rpc_text_is(const struct rpc_arg *arg, const char *text);

#endif
