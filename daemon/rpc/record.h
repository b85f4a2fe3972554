/* Results as structs. proto/methods.json and proto/results.json declare them; proto/generate.py makes a struct and a
 * table of each, <method>_reply or <name>_map. rpc_write_record() writes any of them: it counts the keys that are
 * there, and writes them in the declared order.
 *
 * A key that may be absent is left out where its member is empty: a float NAN; a text or a pointer to a map NULL; a
 * number or bool without `is_there`; a list without `each`. Of other keys a text that is NULL is empty, and a list
 * without `each` must be the last one: the caller writes its values. Bytes of a text that are no UTF-8 become '?'.
 * Thread: any. */
#ifndef KOPS_RPC_RECORD_H
#define KOPS_RPC_RECORD_H

#include "rpc/output.h"

/* Writes value `i` of a list; of a map with keys of any name, the key and the value. */
typedef void rpc_each(struct rpc_output *out, const void *of, uint32_t i);

/* A list, or a map with keys of any name, which `each` writes value by value. */
struct rpc_values {
    uint32_t n; /* UINT32_MAX: not known yet, see rpc_patch_array_head() */
    rpc_each *each;
    const void *of;
};

/* Lists of plain values, for `each`: `of` is an array. */
rpc_each rpc_each_text;   /* const char * */
rpc_each rpc_each_u32;    /* uint32_t */
rpc_each rpc_each_double; /* double */
rpc_each rpc_each_number; /* struct rpc_number: a map */

struct rpc_number {
    const char *key;
    double value;
};

struct rpc_maybe {
    bool is_there;
    uint64_t value;
};

struct rpc_record;

#include "proto/generated/records.h"

/* Writes a list as such. */
void rpc_write_list(struct rpc_output *out, struct rpc_values list);

void rpc_write_record(struct rpc_output *out, const struct rpc_record *record, const void *values);

/* The last two arguments of rpc_write_record(), such as RECORD(trim_reply, .unpinned = bytes, .mappings = n). */
#define RECORD(name, ...)                                                                                              \
    &name##_record, &(const struct name)                                                                               \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }

#endif
