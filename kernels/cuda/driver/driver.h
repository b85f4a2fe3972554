/* The CUDA driver, loaded at run time.
 *
 * Its tables are process-wide, as the library behind them is: cuda_driver_load() fills them before any other call of
 * this backend, and they are read-only after. Thread: any. */
#ifndef KOPS_CUDA_DRIVER_H
#define KOPS_CUDA_DRIVER_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

#include "driver_table.h"

struct cuda_driver {
#define X(Name, suffix, need) __typeof__(cu##Name) *Name;
    CUDA_DRIVER_FUNCTIONS(X)
#undef X
};

struct cuda_context_driver {
#define X(Name, suffix, need) __typeof__(cu##Name) *Name;
    CUDA_CONTEXT_FUNCTIONS(X)
#undef X
};

extern struct cuda_driver cuda;

/* The functions that need a context, with this one made current in the calling thread: no call reaches another
 * device's context, whatever the thread did before. Where the context cannot be made current none is, and each call
 * fails. */
const struct cuda_context_driver *cuda_driver_in(CUcontext context);

/* Makes the context current in the calling thread, or none for NULL. */
CUresult cuda_driver_enter(CUcontext context);

/* Whether the driver has an optional function of struct cuda_context_driver: CUDA_HAS(LaunchKernelEx). */
bool cuda_driver_has(size_t offset);
#define CUDA_HAS(Name) cuda_driver_has(offsetof(struct cuda_context_driver, Name))

/* Loads the driver and initialises it. A machine without one is normal: the function returns a negative
 * number and writes the reason to `why`, NUL-terminated. The library stays loaded until the process ends. */
int cuda_driver_load(const char *path, char *why, size_t why_size);

/* The driver's name of a result, such as "CUDA_ERROR_OUT_OF_MEMORY"; never NULL. */
const char *cuda_result_name(CUresult result);

/* True for results after which the context serves nothing but errors. */
bool cuda_result_is_sticky(CUresult result);

#endif
