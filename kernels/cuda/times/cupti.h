/* The functions of CUPTI by which records are made, resolved at run time. Thread: any, once loaded. */
#ifndef KOPS_CUDA_CUPTI_H
#define KOPS_CUDA_CUPTI_H

#include <cupti.h>
#include <stddef.h>

#define CUPTI_FUNCTIONS(X)                                                                                             \
    X(ActivityRegisterCallbacks)                                                                                       \
    X(ActivityRegisterTimestampCallback)                                                                               \
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

/* -1: `why` says why not, NUL-terminated. */
int cupti_load(struct cupti *ret, char *why, size_t why_size);

#endif
