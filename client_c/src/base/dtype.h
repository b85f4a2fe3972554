/* Element types, as every call asks for them. Thread: any. */
#ifndef KOPS_CLIENT_DTYPE_H
#define KOPS_CLIENT_DTYPE_H

#include <kops/kops.h>

#include "proto/generated/dtypes.h"

/* Whether it is one of enum kops_dtype. */
static inline bool dtype_is_known(enum kops_dtype dtype)
{
    switch (dtype) {
#define X(NAME, name, value, size) case KOPS_##NAME:
        KOPS_DTYPES(X)
#undef X
        return true;
    }
    return false;
}

#endif
