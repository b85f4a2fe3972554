/* The CUDA driver, loaded at run time: `KOPS_CUDA_DRIVER` (a path), or libcuda.so.1. Types and numbers are those of the
 * driver's stable ABI, so that neither toolkit nor driver is needed to build. Thread: any. */
#ifndef KOPS_CLIENT_CUDA_DRIVER_H
#define KOPS_CLIENT_CUDA_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <kops/kops.h>

enum { CUDA_HANDLE_SIZE = 64 };

typedef int cuda_status;     /* CUresult */
typedef int cuda_device;     /* CUdevice */
typedef void *cuda_context;  /* CUcontext */
typedef void *cuda_queue;    /* CUstream */
typedef void *cuda_module;   /* CUmodule */
typedef void *cuda_function; /* CUfunction */
typedef void *cuda_event;    /* CUevent */
typedef uint64_t cuda_pointer;
typedef unsigned long long cuda_allocation; /* CUmemGenericAllocationHandle */

struct cuda_uuid {
    unsigned char bytes[16];
};

struct cuda_ipc_handle { /* also CUmemPoolPtrExportData */
    unsigned char bytes[CUDA_HANDLE_SIZE];
};

struct cuda_access { /* CUmemAccessDesc */
    int location_type, location_id, flags;
};

struct cuda_memory_op { /* CUstreamBatchMemOpParams: a wait or a write */
    int operation;
    cuda_pointer address;
    uint64_t value;
    unsigned flags;
    cuda_pointer alias;
    uint64_t unused;
};

struct cuda_launch_attribute { /* CUlaunchAttribute: a cluster's dimensions, or whether it is cooperative */
    int id;
    char pad[4];
    union {
        char bytes[64];
        unsigned cluster[3];
        int cooperative;
    } value;
};

struct cuda_launch_config { /* CUlaunchConfig */
    unsigned grid[3], block[3], shared_bytes;
    cuda_queue stream;
    struct cuda_launch_attribute *attributes;
    unsigned n_attributes;
};

#define CUDA_STREAM_PER_THREAD ((cuda_queue)(uintptr_t)2) /* CU_STREAM_PER_THREAD */

enum cuda_attribute { /* CUpointer_attribute */
                      CUDA_ATTRIBUTE_CONTEXT = 1,
                      CUDA_ATTRIBUTE_MEMORY_TYPE = 2,
                      CUDA_ATTRIBUTE_BUFFER_ID = 7,
                      CUDA_ATTRIBUTE_IS_MANAGED = 8,
                      CUDA_ATTRIBUTE_DEVICE_ORDINAL = 9,
                      CUDA_ATTRIBUTE_LEGACY_IPC = 10,
                      CUDA_ATTRIBUTE_MEMPOOL = 17
};

enum {
    CUDA_MEMORY_TYPE_DEVICE = 2,
    CUDA_HANDLE_TYPE_FD = 1,  /* CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR */
    CUDA_LOCATION_DEVICE = 1, /* CU_MEM_LOCATION_TYPE_DEVICE */
    CUDA_ACCESS_RW = 3,       /* CU_MEM_ACCESS_FLAGS_PROT_READWRITE */
    CUDA_HOST_PORTABLE = 1,   /* CU_MEMHOSTREGISTER_PORTABLE */
    CUDA_HOST_DEVICEMAP = 2,  /* CU_MEMHOSTREGISTER_DEVICEMAP */
    CUDA_WAIT_GEQ = 0,        /* CU_STREAM_WAIT_VALUE_GEQ: in signed distance */
    CUDA_OP_WAIT_64 = 4,      /* CU_STREAM_MEM_OP_WAIT_VALUE_64 */
    CUDA_OP_WRITE_64 = 5,     /* CU_STREAM_MEM_OP_WRITE_VALUE_64 */
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NOT_REGISTERED = 713, /* host memory */
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_CAPTURE_FIRST = 900, /* errors of streams under capture */
    CUDA_ERROR_CAPTURE_LAST = 908
};

/* X(member, exported name, parameters): every driver call that this library makes. */
#define CUDA_CALLS(X)                                                                                                  \
    X(init, cuInit, (unsigned))                                                                                        \
    X(get_error_name, cuGetErrorName, (cuda_status, const char **))                                                    \
    X(device_get, cuDeviceGet, (cuda_device *, int))                                                                   \
    X(device_get_count, cuDeviceGetCount, (int *))                                                                     \
    X(device_get_uuid, cuDeviceGetUuid_v2, (struct cuda_uuid *, cuda_device))                                          \
    X(primary_retain, cuDevicePrimaryCtxRetain, (cuda_context *, cuda_device))                                         \
    X(context_get, cuCtxGetCurrent, (cuda_context *))                                                                  \
    X(context_push, cuCtxPushCurrent_v2, (cuda_context))                                                               \
    X(context_pop, cuCtxPopCurrent_v2, (cuda_context *))                                                               \
    X(context_synchronize, cuCtxSynchronize, (void))                                                                   \
    X(pointer_attribute, cuPointerGetAttribute, (void *, int, cuda_pointer))                                           \
    X(address_range, cuMemGetAddressRange_v2, (cuda_pointer *, size_t *, cuda_pointer))                                \
    X(ipc_handle, cuIpcGetMemHandle, (struct cuda_ipc_handle *, cuda_pointer))                                         \
    X(copy_to_device, cuMemcpyHtoD_v2, (cuda_pointer, const void *, size_t))                                           \
    X(copy_to_host, cuMemcpyDtoH_v2, (void *, cuda_pointer, size_t))                                                   \
    X(vmm_import, cuMemImportFromShareableHandle, (cuda_allocation *, void *, int))                                    \
    X(vmm_release, cuMemRelease, (cuda_allocation))                                                                    \
    X(vmm_reserve, cuMemAddressReserve, (cuda_pointer *, size_t, size_t, cuda_pointer, unsigned long long))            \
    X(vmm_unreserve, cuMemAddressFree, (cuda_pointer, size_t))                                                         \
    X(vmm_map, cuMemMap, (cuda_pointer, size_t, size_t, cuda_allocation, unsigned long long))                          \
    X(vmm_unmap, cuMemUnmap, (cuda_pointer, size_t))                                                                   \
    X(vmm_set_access, cuMemSetAccess, (cuda_pointer, size_t, const struct cuda_access *, size_t))

/* X(member, exported name, parameters): calls that only parts of this library need; NULL where the driver lacks them.
 */
#define CUDA_OPTIONAL_CALLS(X)                                                                                         \
    X(host_register, cuMemHostRegister_v2, (void *, size_t, unsigned))                                                 \
    X(host_unregister, cuMemHostUnregister, (void *))                                                                  \
    X(host_device_pointer, cuMemHostGetDevicePointer_v2, (cuda_pointer *, void *, unsigned))                           \
    X(primary_state, cuDevicePrimaryCtxGetState, (cuda_device, unsigned *, int *))                                     \
    X(stream_get_id, cuStreamGetId, (cuda_queue, unsigned long long *))                                                \
    X(stream_is_capturing, cuStreamIsCapturing, (cuda_queue, int *))                                                   \
    X(stream_write64, cuStreamWriteValue64_v2, (cuda_queue, cuda_pointer, uint64_t, unsigned))                         \
    X(stream_wait64, cuStreamWaitValue64_v2, (cuda_queue, cuda_pointer, uint64_t, unsigned))                           \
    X(stream_batch, cuStreamBatchMemOp_v2, (cuda_queue, unsigned, struct cuda_memory_op *, unsigned))                  \
    X(module_load, cuModuleLoadData, (cuda_module *, const void *))                                                    \
    X(module_function, cuModuleGetFunction, (cuda_function *, cuda_module, const char *))                              \
    X(function_load, cuFuncLoad, (cuda_function))                                                                      \
    X(function_get, cuFuncGetAttribute, (int *, int, cuda_function))                                                   \
    X(function_set, cuFuncSetAttribute, (cuda_function, int, int))                                                     \
    X(launch, cuLaunchKernel,                                                                                          \
      (cuda_function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cuda_queue, void **,       \
       void **))                                                                                                       \
    X(launch_ex, cuLaunchKernelEx, (const struct cuda_launch_config *, cuda_function, void **, void **))               \
    X(occupancy_blocks, cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *, cuda_function, int, size_t))              \
    X(occupancy_clusters, cuOccupancyMaxActiveClusters, (int *, cuda_function, const struct cuda_launch_config *))     \
    X(map_encode, cuTensorMapEncodeTiled,                                                                              \
      (void *, int, unsigned, void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *, int,     \
       int, int, int))                                                                                                 \
    X(context_device, cuCtxGetDevice, (cuda_device *))                                                                 \
    X(device_attribute, cuDeviceGetAttribute, (int *, int, cuda_device))                                               \
    X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode, (int *))                                               \
    X(event_create, cuEventCreate, (cuda_event *, unsigned))                                                           \
    X(event_destroy, cuEventDestroy_v2, (cuda_event))                                                                  \
    X(event_record, cuEventRecord, (cuda_event, cuda_queue))                                                           \
    X(event_synchronize, cuEventSynchronize, (cuda_event))                                                             \
    X(event_query, cuEventQuery, (cuda_event))                                                                         \
    X(event_elapsed, cuEventElapsedTime, (float *, cuda_event, cuda_event))                                            \
    X(vmm_retain, cuMemRetainAllocationHandle, (cuda_allocation *, void *))                                            \
    X(vmm_export, cuMemExportToShareableHandle, (void *, cuda_allocation, int, unsigned long long))                    \
    X(pool_export, cuMemPoolExportToShareableHandle, (void *, void *, int, unsigned long long))                        \
    X(pool_export_pointer, cuMemPoolExportPointer, (struct cuda_ipc_handle *, cuda_pointer))

struct cuda_driver {
#define X(member, name, parameters) cuda_status(*member) parameters;
    CUDA_CALLS(X)
    CUDA_OPTIONAL_CALLS(X)
#undef X
};

/* Loads and initialises the driver once a process; NULL after it filled *e with no_cuda. */
const struct cuda_driver *cuda_load(struct kops_error *e);

/* During a stream's capture, calls such as cuEventQuery() fail in every thread, and end the capture. A thread may make
 * them between two of these exchanges; *mode is CUDA_CAPTURE_RELAXED before the first. */
enum { CUDA_CAPTURE_RELAXED = 2 /* CU_STREAM_CAPTURE_MODE_RELAXED */ };
static inline void cuda_exchange_capture_mode(const struct cuda_driver *d, int *mode)
{
    if (d->exchange_capture_mode)
        d->exchange_capture_mode(mode);
}

/* Returns the driver where it is loaded already, without checking that it still works; else NULL. */
const struct cuda_driver *cuda_loaded(void);

/* Fills *e: "<what>: <driver's error name>", with the detail `driver`. Returns `code`. */
enum kops_code cuda_fail(const struct cuda_driver *d, struct kops_error *e, enum kops_code code, cuda_status status,
                         const char *what);

/* "GPU-…" in nvidia-smi's form. */
enum { CUDA_UUID_TEXT = 48 };
enum kops_code cuda_device_uuid(const struct cuda_driver *d, int ordinal, char ret_text[CUDA_UUID_TEXT],
                                struct kops_error *e);

/* The ordinal, in this process, of a device's UUID. */
enum kops_code cuda_find_device(const struct cuda_driver *d, const char *uuid, int *ret_ordinal, struct kops_error *e);

/* Tells whether this process uses CUDA on the device: whether its primary context exists. Loads nothing, and makes no
 * context. */
bool cuda_is_in_use(const char *uuid);

/* Makes the device's primary context current; cuda_pop() undoes it. */
enum kops_code cuda_push_primary(const struct cuda_driver *d, int ordinal, struct kops_error *e);
void cuda_pop(const struct cuda_driver *d);

#endif
