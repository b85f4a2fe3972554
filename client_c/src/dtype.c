/* Element types and the size of tensors. */
#include <string.h>

#include <kops/kops.h>

#include "proto/generated/dtypes.h"

size_t kops_dtype_size(enum kops_dtype dtype)
{
    switch (dtype) {
#define X(NAME, name, value, size)                                                                                     \
    case KOPS_##NAME:                                                                                                  \
        return size;
        KOPS_DTYPES(X)
#undef X
    }
    return 0;
}

const char *kops_dtype_name(enum kops_dtype dtype)
{
    switch (dtype) {
#define X(NAME, name, value, size)                                                                                     \
    case KOPS_##NAME:                                                                                                  \
        return name;
        KOPS_DTYPES(X)
#undef X
    }
    return "?";
}

bool kops_dtype_parse(const char *name, enum kops_dtype *ret_dtype)
{
#define X(NAME, text, value, size)                                                                                     \
    if (!strcmp(name, text)) {                                                                                         \
        *ret_dtype = KOPS_##NAME;                                                                                      \
        return true;                                                                                                   \
    }
    KOPS_DTYPES(X)
#undef X
    return false;
}

int64_t kops_tensor_count(const struct kops_tensor *tensor)
{
    int64_t count = 1;
    bool empty = false;

    if (tensor->rank > KOPS_MAX_RANK)
        return -1;
    for (unsigned i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] < 0)
            return -1;
        empty |= tensor->shape[i] == 0;
    }
    for (unsigned i = 0; !empty && i < tensor->rank; i++)
        if (__builtin_mul_overflow(count, tensor->shape[i], &count))
            return -1;
    return empty ? 0 : count;
}
