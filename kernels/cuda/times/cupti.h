/* CUPTI, loaded at run time. Thread: any, once loaded. */
#ifndef KOPS_CUDA_CUPTI_H
#define KOPS_CUDA_CUPTI_H

#include <cupti.h>
#include <stddef.h>

#define CUPTI_FUNCTIONS(X)                                                                                             \
    X(ActivityRegisterCallbacks)                                                                                       \
    X(ActivityEnable)                                                                                                  \
    X(ActivityDisable)                                                                                                 \
    X(ActivityFlushAll)                                                                                                \
    X(ActivityGetNextRecord)                                                                                           \
    X(Subscribe)                                                                                                       \
    X(Unsubscribe)                                                                                                     \
    X(EnableCallback)                                                                                                  \
    X(GetResultString)

struct cupti {
#define X(Name) __typeof__(cupti##Name) *Name;
    CUPTI_FUNCTIONS(X)
#undef X
};

/* Loads the library from `path`, or, for NULL, from where the loader, the toolkit and Python's packages have it. It
 * stays loaded. -1: `why` says why not, NUL-terminated. */
int cupti_load(const char *path, struct cupti *ret, char *why, size_t why_size);

#endif
