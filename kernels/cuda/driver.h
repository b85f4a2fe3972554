/* The CUDA driver, loaded at run time, and how its results become errors.
 *
 * The table is process-wide, as the library behind it is: filled once by cuda_driver_load() before any other call of
 * this backend, read-only after. Thread: any. */
#ifndef KOPS_CUDA_DRIVER_H
#define KOPS_CUDA_DRIVER_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

#include "driver_table.h"
#include "util/error.h"

struct cuda_device;

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

/* The functions that need a context, with the device's made current in the calling thread: no call reaches another
 * device's context, whatever this thread did before. Where it cannot be made current none is, and each call fails. */
const struct cuda_context_driver *cuda_on(const struct cuda_device *d);

/* Makes the context current in the calling thread, or none for NULL. */
CUresult cuda_driver_enter(CUcontext context);

/* Whether the driver has an optional function of struct cuda_context_driver: CUDA_HAS(LaunchKernelEx). */
bool cuda_driver_has(size_t offset);
#define CUDA_HAS(Name) cuda_driver_has(offsetof(struct cuda_context_driver, Name))

/* Loads the driver and initialises it. A machine without one is normal: returns a negative number and says why in
 * `why`, NUL-terminated. The library stays loaded until the process ends. */
int cuda_driver_load(const char *path, char *why, size_t why_size);

/* The driver's name of a result, such as "CUDA_ERROR_OUT_OF_MEMORY"; never NULL. */
const char *cuda_result_name(CUresult result);

/* True for results after which the context serves nothing but errors. */
bool cuda_result_is_sticky(CUresult result);

/* Fills `e` for a failed call and returns -1. A sticky result also marks `device` (may be NULL) as broken. */
int cuda_fail(struct cuda_device *device, CUresult result, const char *call, struct error *e);

static inline int cuda_check(struct cuda_device *device, CUresult result, const char *call, struct error *e)
{
    return __builtin_expect(result == CUDA_SUCCESS, 1) ? 0 : cuda_fail(device, result, call, e);
}

/* One driver call on a device as a fallible function: CUDA_CALL(device, e, MemUnmap, address, size). */
#define CUDA_CALL(device, e, Name, ...) cuda_check((device), cuda_on(device)->Name(__VA_ARGS__), "cu" #Name, (e))

/* The same while the device is being opened: a sticky result breaks nothing that anybody uses. */
#define CUDA_OPEN_CALL(device, e, Name, ...) cuda_check(NULL, cuda_on(device)->Name(__VA_ARGS__), "cu" #Name, (e))

/* One that needs no context. */
#define CUDA_DRIVER_CALL(e, Name, ...) cuda_check(NULL, cuda.Name(__VA_ARGS__), "cu" #Name, (e))

#endif
