/* The first version's names of functions that took 32-bit addresses. A real driver exports them beside the _v2 ones,
 * and a program that looks up the plain name gets them: here they say so and refuse. */
#include <stdio.h>

#include "control.h"

/* Without cuda.h, whose macros turn these names into the _v2 ones. */
int standin_legacy_call(const char *name);

#define LEGACY(X)                                                                                                      \
    X(cuDeviceTotalMem)                                                                                                \
    X(cuModuleGetGlobal)                                                                                               \
    X(cuMemGetInfo)                                                                                                    \
    X(cuMemAlloc)                                                                                                      \
    X(cuMemAllocPitch)                                                                                                 \
    X(cuMemFree)                                                                                                       \
    X(cuMemGetAddressRange)                                                                                            \
    X(cuMemAllocHost)                                                                                                  \
    X(cuMemHostGetDevicePointer)                                                                                       \
    X(cuMemcpyHtoD)                                                                                                    \
    X(cuMemcpyDtoH)                                                                                                    \
    X(cuMemcpyDtoD)                                                                                                    \
    X(cuMemcpyHtoDAsync)                                                                                               \
    X(cuMemcpyDtoHAsync)                                                                                               \
    X(cuMemcpyDtoDAsync)                                                                                               \
    X(cuMemsetD8)                                                                                                      \
    X(cuMemsetD16)                                                                                                     \
    X(cuMemsetD32)

#define X(name)                                                                                                        \
    __attribute__((visibility("default"))) int name(void);                                                             \
    int name(void)                                                                                                     \
    {                                                                                                                  \
        return standin_legacy_call(#name);                                                                             \
    }
LEGACY(X)
#undef X
