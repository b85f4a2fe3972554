/* Element types, from proto/dtypes.json. */
#ifndef KOPS_CORE_DTYPE_H
#define KOPS_CORE_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/generated/dtypes.h"

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

#endif
