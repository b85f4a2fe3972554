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

extern struct cuda_driver cuda;

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

/* One driver call as a fallible function: CUDA_CALL(device, e, MemUnmap, address, size). */
#define CUDA_CALL(device, e, Name, ...) cuda_check((device), cuda.Name(__VA_ARGS__), "cu" #Name, (e))

#endif
