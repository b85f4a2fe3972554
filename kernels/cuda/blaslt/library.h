/* The cuBLASLt library, loaded at run time: its functions, and how its results become errors. */
#ifndef KOPS_CUDA_BLASLT_LIBRARY_H
#define KOPS_CUDA_BLASLT_LIBRARY_H

#include <cublasLt.h>

#include "driver/device.h"
#include "library_table.h"

struct blaslt_api {
    void *library;
#define X(Name) __typeof__(cublasLt##Name) *Name;
    BLASLT_FUNCTIONS(X)
#undef X
};

extern struct blaslt_api blaslt_api; /* filled once; blaslt_ready() comes before */

/* Loads the library now if it was to be loaded late. Error: unsupported, there is none. Thread: any; may block. */
int blaslt_ready(struct error *e);

struct blaslt_context_api {
#define X(Name) __typeof__(cublasLt##Name) *Name;
    BLASLT_CONTEXT_FUNCTIONS(X)
#undef X
};

/* The functions that work in a context, with the device's made current, as cuda_on() does. */
const struct blaslt_context_api *blaslt_on(const struct cuda_device *d);

/* Fills `e` for a failed call and returns -1. */
int blaslt_fail(cublasStatus_t status, const char *call, struct error *e);

#endif
