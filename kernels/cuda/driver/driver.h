/* The CUDA driver, loaded at run time. The tables of functions are global: cuda_driver_load() fills them before any
 * other call of this backend, and they are constant afterwards. Thread: any. */
#ifndef KOPS_CUDA_DRIVER_H
#define KOPS_CUDA_DRIVER_H

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

/* All functions of the driver that are called.
 *
 * X(Name, suffix, need): the field is `Name`, its type that of cuda.h's `cu<Name>` (a macro for the newest version),
 * the symbol "cu<Name><suffix>". Before driver 12.8 the older EventElapsedTime of the same signature is used, which
 * takes 3.6 us on an H200, not 0.1. */

/* Functions about the driver and its devices. */
#define CUDA_DRIVER_FUNCTIONS(X)                                                                                       \
    X(Init, "", REQUIRED)                                                                                              \
    X(GetErrorName, "", REQUIRED)                                                                                      \
    X(DeviceGetCount, "", REQUIRED)                                                                                    \
    X(DeviceGet, "", REQUIRED)                                                                                         \
    X(DeviceGetName, "", REQUIRED)                                                                                     \
    X(DeviceGetUuid, "_v2", REQUIRED)                                                                                  \
    X(DeviceGetAttribute, "", REQUIRED)                                                                                \
    X(DeviceTotalMem, "_v2", REQUIRED)                                                                                 \
    X(DevicePrimaryCtxRetain, "", REQUIRED)                                                                            \
    X(DevicePrimaryCtxRelease, "_v2", REQUIRED)                                                                        \
    X(CtxSetCurrent, "", REQUIRED)                                                                                     \
    X(DeviceCanAccessPeer, "", OPTIONAL)                                                                               \
    X(DriverGetVersion, "", OPTIONAL)                                                                                  \
    X(TensorMapEncodeTiled, "", OPTIONAL)

/* Functions that act on the current context or on its handles, and the functions of virtual memory, which need no
 * context. Get them from cuda_on(). */
#define CUDA_CONTEXT_FUNCTIONS(X)                                                                                      \
    X(MemGetInfo, "_v2", OPTIONAL)                                                                                     \
    /* kernels */                                                                                                      \
    X(ModuleLoadData, "", REQUIRED)                                                                                    \
    X(ModuleUnload, "", REQUIRED)                                                                                      \
    X(ModuleGetFunction, "", REQUIRED)                                                                                 \
    X(ModuleGetGlobal, "_v2", REQUIRED)                                                                                \
    X(FuncGetAttribute, "", REQUIRED)                                                                                  \
    X(FuncSetAttribute, "", REQUIRED)                                                                                  \
    X(FuncLoad, "", OPTIONAL)                                                                                          \
    X(LaunchKernel, "", REQUIRED)                                                                                      \
    X(LaunchKernelEx, "", OPTIONAL)                                                                                    \
    X(OccupancyMaxActiveBlocksPerMultiprocessor, "", OPTIONAL)                                                         \
    X(OccupancyMaxActiveClusters, "", OPTIONAL)                                                                        \
    /* streams and events */                                                                                           \
    X(StreamCreate, "", REQUIRED)                                                                                      \
    X(StreamCreateWithPriority, "", REQUIRED)                                                                          \
    X(CtxGetStreamPriorityRange, "", REQUIRED)                                                                         \
    X(StreamDestroy, "_v2", REQUIRED)                                                                                  \
    X(StreamQuery, "", REQUIRED)                                                                                       \
    X(StreamBatchMemOp, "_v2", OPTIONAL)                                                                               \
    X(StreamSynchronize, "", REQUIRED)                                                                                 \
    X(EventCreate, "", REQUIRED)                                                                                       \
    X(EventDestroy, "_v2", REQUIRED)                                                                                   \
    X(EventRecord, "", REQUIRED)                                                                                       \
    X(EventQuery, "", REQUIRED)                                                                                        \
    X(EventSynchronize, "", REQUIRED)                                                                                  \
    X(EventElapsedTime, "_v2", OPTIONAL)                                                                               \
    /* graphs */                                                                                                       \
    X(StreamBeginCapture, "_v2", OPTIONAL)                                                                             \
    X(StreamEndCapture, "", OPTIONAL)                                                                                  \
    X(GraphInstantiateWithFlags, "", OPTIONAL)                                                                         \
    X(GraphDestroy, "", OPTIONAL)                                                                                      \
    X(GraphLaunch, "", OPTIONAL)                                                                                       \
    X(GraphExecDestroy, "", OPTIONAL)                                                                                  \
    X(GraphGetNodes, "", OPTIONAL)                                                                                     \
    X(GraphNodeGetType, "", OPTIONAL)                                                                                  \
    X(GraphKernelNodeGetParams, "_v2", OPTIONAL)                                                                       \
    X(FuncGetName, "", OPTIONAL)                                                                                       \
    /* copies, and scratch memory in stream order */                                                                   \
    X(MemPoolCreate, "", REQUIRED)                                                                                     \
    X(MemPoolDestroy, "", REQUIRED)                                                                                    \
    X(MemPoolSetAttribute, "", REQUIRED)                                                                               \
    X(MemAllocFromPoolAsync, "", REQUIRED)                                                                             \
    X(MemFreeAsync, "", REQUIRED)                                                                                      \
    X(MemcpyHtoDAsync, "_v2", REQUIRED)                                                                                \
    X(MemcpyDtoHAsync, "_v2", REQUIRED)                                                                                \
    X(MemcpyDtoDAsync, "_v2", OPTIONAL)                                                                                \
    X(MemsetD8Async, "", REQUIRED)                                                                                     \
    X(MemHostAlloc, "", OPTIONAL)                                                                                      \
    X(MemFreeHost, "", OPTIONAL)                                                                                       \
    X(MemHostRegister, "_v2", REQUIRED)                                                                                \
    X(MemHostUnregister, "", REQUIRED)                                                                                 \
    X(MemHostGetDevicePointer, "_v2", REQUIRED)                                                                        \
    /* other processes' memory, and ours for other processes */                                                        \
    X(IpcOpenMemHandle, "_v2", REQUIRED)                                                                               \
    X(IpcCloseMemHandle, "", REQUIRED)                                                                                 \
    X(MemGetAddressRange, "_v2", REQUIRED)                                                                             \
    X(PointerGetAttribute, "", REQUIRED)                                                                               \
    X(MemGetAllocationGranularity, "", REQUIRED)                                                                       \
    X(MemCreate, "", REQUIRED)                                                                                         \
    X(MemRelease, "", REQUIRED)                                                                                        \
    X(MemAddressReserve, "", REQUIRED)                                                                                 \
    X(MemAddressFree, "", REQUIRED)                                                                                    \
    X(MemMap, "", REQUIRED)                                                                                            \
    X(MemUnmap, "", REQUIRED)                                                                                          \
    X(MemSetAccess, "", REQUIRED)                                                                                      \
    X(MemExportToShareableHandle, "", REQUIRED)                                                                        \
    X(MemImportFromShareableHandle, "", REQUIRED)                                                                      \
    X(MemGetAllocationPropertiesFromHandle, "", REQUIRED)                                                              \
    X(MemPoolImportFromShareableHandle, "", OPTIONAL)                                                                  \
    X(MemPoolImportPointer, "", OPTIONAL)                                                                              \
    X(MemPoolSetAccess, "", OPTIONAL)

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

/* Makes the context current in the calling thread, and returns the functions that need one. So no call reaches another
 * device's context. If that fails, no context is current, and each call fails. */
const struct cuda_context_driver *cuda_driver_in(CUcontext context);

CUresult cuda_driver_enter(CUcontext context);

/* Whether the driver has an optional function: CUDA_HAS(LaunchKernelEx). */
bool cuda_driver_has(size_t offset);
#define CUDA_HAS(Name) cuda_driver_has(offsetof(struct cuda_context_driver, Name))

/* A function to look up, and the place of its address in a table. */
struct cuda_symbol {
    const char *name;
    size_t offset;
    bool optional;
};

/* Looks functions up in a handle of dlopen(). Returns the name of the first missing one, or NULL. */
const char *cuda_resolve(void *library, const struct cuda_symbol *wanted, size_t n, void *table);

/* Loads and initialises the driver for the life of the process. Returns -1 where there is none, which is normal;
 * `why` has the reason. */
int cuda_driver_load(const char *path, char *why, size_t why_size);

/* "CUDA_ERROR_OUT_OF_MEMORY"; never NULL. */
const char *cuda_result_name(CUresult result);

/* Whether all later calls in the context fail after this result. */
bool cuda_result_is_sticky(CUresult result);

/* ---- CUPTI's library, which times/ and counters/ share: loaded when it is first needed, and kept ---- */

/* Call before the first cupti_library(). `setting`: a path, "off", or NULL for the usual places; stays valid. `driver`:
 * the path of the driver's library where one was set, or NULL. CUPTI finds the driver by itself, so with a set driver
 * CUPTI is used only if it was set, too. */
void cupti_choose(const char *setting, const char *driver);

/* Returns the handle of dlopen(). NULL: `why` has the reason. */
void *cupti_library(char *why, size_t why_size);

#endif
