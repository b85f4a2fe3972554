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

static bool parse_name(const char *name, enum kops_dtype *ret_dtype)
{
#define X(NAME, text, value, size)                                                                                     \
    if (!strcmp(name, text)) {                                                                                         \
        *ret_dtype = KOPS_##NAME;                                                                                      \
        return true;                                                                                                   \
    }
    KOPS_DTYPES(X)
#undef X
#define X(text, NAME)                                                                                                  \
    if (!strcmp(name, text)) {                                                                                         \
        *ret_dtype = KOPS_##NAME;                                                                                      \
        return true;                                                                                                   \
    }
    KOPS_C_TYPES(X)
#undef X
    return false;
}

/* Parses `unsigned long long int` and every other form that C allows, in any order. client_py/kops/_source/types.py has
 * the same rule, and both run tests/vectors/c_types.json. */
static bool parse_integer(const char *text, enum kops_dtype *ret_dtype)
{
    static const char *const words[] = {"unsigned", "signed", "char", "short", "int", "long"};
    enum { UNSIGNED, SIGNED, CHAR, SHORT, INT, LONG, N_WORDS };
    unsigned count[N_WORDS] = {0}, total = 0;
    const enum kops_dtype types[][2] = {
        {KOPS_I8, KOPS_U8}, {KOPS_I16, KOPS_U16}, {KOPS_I32, KOPS_U32}, {KOPS_I64, KOPS_U64}};
    size_t n;

    for (; *(text += strspn(text, " \t")); text += n, total++) {
        unsigned i = 0;

        n = strcspn(text, " \t");
        while (i < N_WORDS && (strlen(words[i]) != n || strncmp(text, words[i], n) != 0))
            i++;
        if (i == N_WORDS)
            return false;
        count[i]++;
    }
    if (!total || count[UNSIGNED] + count[SIGNED] > 1 || count[CHAR] > 1 || count[SHORT] > 1 || count[INT] > 1 ||
        count[LONG] > 2 || (count[CHAR] && count[INT]) ||
        (count[CHAR] != 0) + (count[SHORT] != 0) + (count[LONG] != 0) > 1)
        return false;
    *ret_dtype = types[count[CHAR] ? 0 : count[SHORT] ? 1 : count[LONG] ? 3 : 2][count[UNSIGNED]];
    return true;
}

static bool skip(const char **name, const char *scope)
{
    const size_t length = strlen(scope);

    if (strncmp(*name, scope, length) != 0)
        return false;
    *name += length;
    return true;
}

bool kops_dtype_parse(const char *name, enum kops_dtype *ret_dtype)
{
    skip(&name, "::");
    if (!skip(&name, "cuda::std::"))
        skip(&name, "std::");
    return parse_name(name, ret_dtype) || parse_integer(name, ret_dtype);
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
