/* Element types, from proto/dtypes.json, and views of buffers: shape, strides, offset, and the overflow-checked
 * arithmetic on them. Plain values; no memory is touched here. */
#ifndef KOPS_CORE_TENSOR_H
#define KOPS_CORE_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/generated/dtypes.h"
#include "util/error.h"

/* ---- element types ---- */

enum dtype {
#define X(NAME, name, value, size) DTYPE_##NAME = (value),
    KOPS_DTYPES(X)
#undef X
};

#define DTYPE_BIT(dtype) (1U << (dtype))

#define X(NAME, name, value, size) +1
enum { DTYPE_SLOTS = 1 KOPS_DTYPES(X) /* size of an array that is indexed by dtype */ };
#undef X

/* Bytes of one element; 0 for no dtype. */
static inline size_t dtype_size(enum dtype dtype)
{
    switch (dtype) {
#define X(NAME, name, value, size)                                                                                     \
    case DTYPE_##NAME:                                                                                                 \
        return size;
        KOPS_DTYPES(X)
#undef X
    }
    return 0;
}

static inline bool dtype_is_float(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_F64 || dtype == DTYPE_F16 || dtype == DTYPE_BF16 ||
           dtype == DTYPE_F8_E4M3 || dtype == DTYPE_F8_E5M2;
}

static inline const char *dtype_name(enum dtype dtype)
{
    switch (dtype) {
#define X(NAME, name, value, size)                                                                                     \
    case DTYPE_##NAME:                                                                                                 \
        return name;
        KOPS_DTYPES(X)
#undef X
    }
    return "?";
}

/* ---- tensors ---- */

enum { TENSOR_MAX_RANK = 8, TENSOR_SEARCH_STEPS = 4096 /* steps for one pair */ };

struct tensor {
    enum dtype dtype;
    unsigned rank;
    int64_t shape[TENSOR_MAX_RANK];   /* ≥ 0 */
    int64_t strides[TENSOR_MAX_RANK]; /* elements, ≥ 0 */
    uint64_t offset;                  /* bytes to the first element */
    uint64_t count;                   /* elements: the product of shape; 0 when empty */
    uint64_t extent;                  /* bytes from the first element to the end of the furthest; 0 when empty */
};

/* Sets row-major strides from shape and rank. */
void tensor_set_contiguous(struct tensor *t);

/* Fills count and extent from the other fields. `key` names the tensor in errors ("in[0]").
 * Errors: out_of_range (a product or sum overflows 63 bits), misaligned. */
int tensor_measure(struct tensor *t, const char *key, struct error *e);

/* Error: out_of_bounds, unless [offset, offset + extent) lies in a buffer of `size` bytes. */
int tensor_check_bounds(const struct tensor *t, uint64_t size, const char *key, struct error *e);

/* Returns the stride of a dimension for arithmetic. A tensor without elements may have any strides: tensor_measure()
 * checks only strides that lead to an element. */
static inline int64_t tensor_stride(const struct tensor *t, unsigned i)
{
    return t->count ? t->strides[i] : 0;
}

/* Tells whether a dimension of stride `outer` continues in memory where an inner dimension of `size` and stride `inner`
 * ends. The product of two strides that lead to elements may exceed 2^63. */
static inline bool tensor_strides_merge(int64_t outer, int64_t inner, int64_t size)
{
    int64_t end;

    return !__builtin_mul_overflow(inner, size, &end) && outer == end;
}

/* Tells whether two different indices share an element, or possibly do. Exact for the layouts that slicing, transposing
 * and broadcasting make; a layout whose dimensions interleave counts as overlapping. */
bool tensor_overlaps_itself(const struct tensor *t);

/* Compares offset, shape and strides (dimensions of size 1 aside). Only for tensors in the same memory. */
bool tensor_same_view(const struct tensor *a, const struct tensor *b);

/* Tells whether two tensors share an element. Only for tensors in the same memory. Exact where the strides nest, as
 * slicing and transposing make them; otherwise, or when the search grows long, intersecting byte ranges count as
 * sharing. */
bool tensor_share_elements(const struct tensor *a, const struct tensor *b);
/* Checks one of many pairs that share a budget of steps, for the search and for comparing strides; *budget is left with
 * the rest. */
bool tensor_share_elements_within(const struct tensor *a, const struct tensor *b, unsigned *budget);

#endif
