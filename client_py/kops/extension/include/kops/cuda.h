// The host side of the CUDA runtime. Kernels are stubs that record their arguments; the launch that follows hands them
// over. Functions go by name through the table; what they need of the GPU is the Python runtime's.
#pragma once
#include <kops/abi.h>
#include <kops/check.h>
#include <kops/numbers.h>

#include <math.h>
#include <vector>

#define __CUDACC__           1
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 8
#define CUDART_VERSION       12080
#define CUDA_VERSION         12080
#define CUDART_CB
#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__
#define __managed__
#define __grid_constant__
#define __forceinline__ __inline__
#define __noinline__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __maxnreg__(...)
#define __align__(n) __attribute__((aligned(n)))

typedef enum cudaError {
#define KOPS_CUDA_ERRORS(_)                                                                                            \
    _(cudaSuccess, 0, "no error")                                                                                      \
    _(cudaErrorInvalidValue, 1, "invalid argument")                                                                    \
    _(cudaErrorMemoryAllocation, 2, "out of memory")                                                                   \
    _(cudaErrorInitializationError, 3, "initialization error")                                                         \
    _(cudaErrorCudartUnloading, 4, "driver shutting down")                                                             \
    _(cudaErrorInvalidConfiguration, 9, "invalid configuration argument")                                              \
    _(cudaErrorInvalidPitchValue, 12, "invalid pitch argument")                                                        \
    _(cudaErrorInvalidSymbol, 13, "invalid device symbol")                                                             \
    _(cudaErrorInvalidDevicePointer, 17, "invalid device pointer")                                                     \
    _(cudaErrorInvalidMemcpyDirection, 21, "invalid copy direction for memcpy")                                        \
    _(cudaErrorInsufficientDriver, 35, "CUDA driver version is insufficient for CUDA runtime version")                 \
    _(cudaErrorMissingConfiguration, 52, "__global__ function call is not configured")                                 \
    _(cudaErrorInvalidDeviceFunction, 98, "invalid device function")                                                   \
    _(cudaErrorNoDevice, 100, "no CUDA-capable device is detected")                                                    \
    _(cudaErrorInvalidDevice, 101, "invalid device ordinal")                                                           \
    _(cudaErrorInvalidKernelImage, 200, "device kernel image is invalid")                                              \
    _(cudaErrorNoKernelImageForDevice, 209, "no kernel image is available for execution on the device")                \
    _(cudaErrorInvalidPtx, 218, "a PTX JIT compilation failed")                                                        \
    _(cudaErrorInvalidResourceHandle, 400, "invalid resource handle")                                                  \
    _(cudaErrorSymbolNotFound, 500, "named symbol not found")                                                          \
    _(cudaErrorNotReady, 600, "device not ready")                                                                      \
    _(cudaErrorIllegalAddress, 700, "an illegal memory access was encountered")                                        \
    _(cudaErrorLaunchOutOfResources, 701, "too many resources requested for launch")                                   \
    _(cudaErrorLaunchTimeout, 702, "the launch timed out and was terminated")                                          \
    _(cudaErrorPeerAccessAlreadyEnabled, 704, "peer access is already enabled")                                        \
    _(cudaErrorPeerAccessNotEnabled, 705, "peer access has not been enabled")                                          \
    _(cudaErrorAssert, 710, "device-side assert triggered")                                                            \
    _(cudaErrorMisalignedAddress, 716, "misaligned address")                                                           \
    _(cudaErrorLaunchFailure, 719, "unspecified launch failure")                                                       \
    _(cudaErrorCooperativeLaunchTooLarge, 720, "too many blocks in cooperative launch")                                \
    _(cudaErrorNotPermitted, 800, "operation not permitted")                                                           \
    _(cudaErrorNotSupported, 801, "operation not supported")                                                           \
    _(cudaErrorUnknown, 999, "unknown error")
#define _(NAME, NUMBER, TEXT) NAME = NUMBER,
    KOPS_CUDA_ERRORS(_)
#undef _
} cudaError_t;

inline const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define _(NAME, NUMBER, TEXT)                                                                                          \
    case NAME:                                                                                                         \
        return #NAME;
        KOPS_CUDA_ERRORS(_)
#undef _
    }
    return "unrecognized error code";
}
inline const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
#define _(NAME, NUMBER, TEXT)                                                                                          \
    case NAME:                                                                                                         \
        return TEXT;
        KOPS_CUDA_ERRORS(_)
#undef _
    }
    return "unrecognized error code";
}

typedef struct CUstream_st *cudaStream_t, *CUstream;
typedef struct CUevent_st *cudaEvent_t;
typedef unsigned long long cudaTextureObject_t;
typedef unsigned long long CUdeviceptr;

enum cudaMemcpyKind {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault,
};
enum { cudaStreamDefault = 0, cudaStreamNonBlocking = 1 };
enum { cudaEventDefault = 0, cudaEventBlockingSync = 1, cudaEventDisableTiming = 2, cudaEventInterprocess = 4 };
enum { cudaMemAttachGlobal = 1, cudaMemAttachHost = 2 };
enum { cudaHostAllocDefault = 0, cudaHostAllocPortable = 1, cudaHostAllocMapped = 2, cudaHostAllocWriteCombined = 4 };
enum { cudaHostRegisterDefault = 0, cudaHostRegisterPortable = 1, cudaHostRegisterMapped = 2 };
enum { cudaOccupancyDefault = 0, cudaCpuDeviceId = -1 };
#define cudaStreamLegacy    ((cudaStream_t)1)
#define cudaStreamPerThread ((cudaStream_t)2)

typedef enum cudaDataType_t {
    CUDA_R_32F = 0,
    CUDA_R_64F = 1,
    CUDA_R_16F = 2,
    CUDA_R_8I = 3,
    CUDA_C_32F = 4,
    CUDA_C_64F = 5,
    CUDA_C_16F = 6,
    CUDA_R_8U = 8,
    CUDA_R_32I = 10,
    CUDA_R_32U = 12,
    CUDA_R_16BF = 14,
    CUDA_C_16BF = 15,
    CUDA_R_64I = 24,
    CUDA_R_8F_E4M3 = 28,
    CUDA_R_8F_E5M2 = 29,
} cudaDataType;

enum cudaFuncAttribute {
    cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
    cudaFuncAttributePreferredSharedMemoryCarveout = 9,
    cudaFuncAttributeClusterDimMustBeSet = 10,
    cudaFuncAttributeNonPortableClusterSizeAllowed = 14,
    cudaFuncAttributeClusterSchedulingPolicyPreference = 15,
};
enum cudaFuncCache {
    cudaFuncCachePreferNone,
    cudaFuncCachePreferShared,
    cudaFuncCachePreferL1,
    cudaFuncCachePreferEqual,
};
enum cudaSharedMemConfig {
    cudaSharedMemBankSizeDefault,
    cudaSharedMemBankSizeFourByte,
    cudaSharedMemBankSizeEightByte,
};
enum cudaSharedCarveout {
    cudaSharedmemCarveoutDefault = -1,
    cudaSharedmemCarveoutMaxL1 = 0,
    cudaSharedmemCarveoutMaxShared = 100,
};
enum cudaLimit {
    cudaLimitStackSize = 0,
    cudaLimitPrintfFifoSize = 1,
    cudaLimitMallocHeapSize = 2,
    cudaLimitPersistingL2CacheSize = 6,
};
enum cudaDeviceAttr {
    cudaDevAttrMaxThreadsPerBlock = 1,
    cudaDevAttrMaxBlockDimX = 2,
    cudaDevAttrMaxBlockDimY = 3,
    cudaDevAttrMaxBlockDimZ = 4,
    cudaDevAttrMaxGridDimX = 5,
    cudaDevAttrMaxGridDimY = 6,
    cudaDevAttrMaxGridDimZ = 7,
    cudaDevAttrMaxSharedMemoryPerBlock = 8,
    cudaDevAttrTotalConstantMemory = 9,
    cudaDevAttrWarpSize = 10,
    cudaDevAttrMaxPitch = 11,
    cudaDevAttrMaxRegistersPerBlock = 12,
    cudaDevAttrClockRate = 13,
    cudaDevAttrTextureAlignment = 14,
    cudaDevAttrMultiProcessorCount = 16,
    cudaDevAttrIntegrated = 18,
    cudaDevAttrCanMapHostMemory = 19,
    cudaDevAttrComputeMode = 20,
    cudaDevAttrConcurrentKernels = 31,
    cudaDevAttrEccEnabled = 32,
    cudaDevAttrPciBusId = 33,
    cudaDevAttrPciDeviceId = 34,
    cudaDevAttrMemoryClockRate = 36,
    cudaDevAttrGlobalMemoryBusWidth = 37,
    cudaDevAttrL2CacheSize = 38,
    cudaDevAttrMaxThreadsPerMultiProcessor = 39,
    cudaDevAttrAsyncEngineCount = 40,
    cudaDevAttrUnifiedAddressing = 41,
    cudaDevAttrComputeCapabilityMajor = 75,
    cudaDevAttrComputeCapabilityMinor = 76,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
    cudaDevAttrMaxRegistersPerMultiprocessor = 82,
    cudaDevAttrManagedMemory = 83,
    cudaDevAttrPageableMemoryAccess = 88,
    cudaDevAttrConcurrentManagedAccess = 89,
    cudaDevAttrCooperativeLaunch = 95,
    cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
    cudaDevAttrMaxBlocksPerMultiprocessor = 106,
    cudaDevAttrMaxPersistingL2CacheSize = 108,
    cudaDevAttrReservedSharedMemoryPerBlock = 111,
    cudaDevAttrMemoryPoolsSupported = 115,
    cudaDevAttrClusterLaunch = 120,
};

namespace kops
{
// An argument of a function of the CUDA runtime: a number, a pointer or a name.
struct CudaArgument {
    KopsValue value{};
    template <class T> CudaArgument(T argument)
    {
        value.tag = KOPS_IS_INT;
        if constexpr (std::is_pointer_v<T> || std::is_null_pointer_v<T>)
            value.i = (int64_t)(uintptr_t)argument;
        else
            value.i = (int64_t)argument;
    }
    CudaArgument(const char *name)
    {
        value.tag = KOPS_IS_STRING;
        value.n = (int32_t)strlen(name);
        value.p = name;
    }
};

inline cudaError_t cuda(const char *name, std::initializer_list<CudaArgument> arguments, int64_t *out)
{
    std::vector<KopsValue> values;
    for (const CudaArgument &argument : arguments)
        values.push_back(argument.value);
    return (cudaError_t)table->cuda(name, values.data(), (int)values.size(), out);
}
inline cudaError_t cuda(const char *name, std::initializer_list<CudaArgument> arguments = {})
{
    int64_t out = 0;
    return cuda(name, arguments, &out);
}
// A function that returns a number or pointer through its first argument.
template <class T> cudaError_t cuda_out(T *result, const char *name, std::initializer_list<CudaArgument> arguments)
{
    int64_t out = 0;
    cudaError_t error = cuda(name, arguments, &out);
    if (error == cudaSuccess)
        *result = (T)out;
    return error;
}

// ---- Launches

template <class T> constexpr const char *type_text()
{
    return __PRETTY_FUNCTION__;
}

template <class T> KopsArg kernel_argument(const T &value)
{
    int kind = std::is_pointer_v<T>                           ? 'p'
               : std::is_floating_point_v<T>                  ? 'f'
               : !std::is_integral_v<T> && !std::is_enum_v<T> ? 's'
               : std::is_enum_v<T> || std::is_signed_v<T>     ? 'i'
                                                              : 'u';
    return {(const void *)&value, sizeof(T), kind, 0, type_text<T>()};
}

// The call of a kernel's stub, until its launch.
struct PendingLaunch {
    bool is_set = false;
    std::string kernel;
    std::vector<KopsArg> arguments;
    std::vector<char> bytes; // of the arguments, one after another
};
inline thread_local PendingLaunch pending;

inline void record(const char *kernel, const KopsArg *arguments, size_t count)
{
    pending.is_set = true;
    pending.kernel = kernel;
    pending.arguments.assign(arguments, arguments + count);
    pending.bytes.clear();
    for (const KopsArg &argument : pending.arguments)
        pending.bytes.insert(pending.bytes.end(), (const char *)argument.data,
                             (const char *)argument.data + argument.size);
}

// The body of every kernel's stub. What rewritten sources name is called as no macro of a source is.
template <class... A> void kops_stub(const char *kernel, const A &...arguments)
{
    static_assert((std::is_trivially_copyable_v<A> && ...), "kops: a kernel's arguments are copied as bytes");
    const KopsArg described[] = {kernel_argument(arguments)..., {}};
    record(kernel, described, sizeof...(A));
}

// k<<<grid, block, shared, stream>>>(…), after the call of the stub.
inline void kops_launch(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t stream = nullptr)
{
    if (!pending.is_set)
        throw c10::Error("a launch without a kernel");
    pending.is_set = false;
    const char *data = pending.bytes.data();
    for (KopsArg &argument : pending.arguments) {
        argument.data = data;
        data += argument.size;
    }
    const uint32_t dims[] = {grid.x, grid.y, grid.z, block.x, block.y, block.z};
    if (table->launch(pending.kernel.c_str(), dims, shared, stream, pending.arguments.data(),
                      (int)pending.arguments.size()))
        throw c10::Error(table->error());
}

// The name of a kernel, as its stub gives it: called with arguments of zero bytes, which it only copies.
template <class... P> std::string kernel_name(void (*kernel)(P...))
{
    struct alignas(16) Zeros {
        char bytes[4096];
    };
    static const Zeros zeros{};
    static_assert(((sizeof(P) <= sizeof(zeros)) && ...), "kops: a kernel's argument is larger than 4,096 bytes");
    kernel((P) * (const std::remove_reference_t<P> *)&zeros...);
    pending.is_set = false;
    return pending.kernel;
}
// An address without a type says nothing of the kernel's parameters.
template <class T> std::string kernel_name(T *)
{
    static_assert(!std::is_void_v<std::remove_cv_t<T>>,
                  "kops: a kernel is given as a void pointer here; give the kernel itself, without a cast");
    return "";
}

template <class... P, size_t... I> void call_stub(void (*kernel)(P...), void **arguments, std::index_sequence<I...>)
{
    kernel(*(std::remove_reference_t<P> *)arguments[I]...);
}
template <class... P>
cudaError_t launch_kernel(const char *attribute, void (*kernel)(P...), dim3 grid, dim3 block, void **arguments,
                          size_t shared = 0, cudaStream_t stream = nullptr)
{
    if (attribute)
        cuda("cudaLaunchAttribute", {attribute, 1});
    call_stub(kernel, arguments, std::index_sequence_for<P...>());
    kops_launch(grid, block, shared, stream);
    return cudaSuccess;
}
template <class T>
cudaError_t launch_kernel(const char *, T *kernel, dim3, dim3, void **, size_t = 0, cudaStream_t = nullptr)
{
    kernel_name(kernel);
    return cudaErrorInvalidDeviceFunction;
}
} // namespace kops

// A cast before the kernel, as in cudaLaunchKernel((void *)kernel, …), is dropped: the kernel's type is needed.
#define KOPS_DROP(...)
#define KOPS_CAST(...)         cast,
#define KOPS_SECOND(A, B, ...) B
#define KOPS_SELECT(...)       KOPS_SECOND(__VA_ARGS__, , )
#define KOPS_FIRST(A, ...)     A
#define KOPS_HAS_cast          ~, KOPS_DROP,
#define KOPS_HAS_KOPS_CAST     ~, ,
#define KOPS_CHOOSE_(FIRST)    KOPS_SELECT(KOPS_HAS_##FIRST)
#define KOPS_CHOOSE(FIRST)     KOPS_CHOOSE_(FIRST)
#define KOPS_FIRST_OF(...)     KOPS_FIRST(__VA_ARGS__, )
#define KOPS_WITHOUT_CAST(...) KOPS_CHOOSE(KOPS_FIRST_OF(KOPS_CAST __VA_ARGS__)) __VA_ARGS__
#define cudaLaunchKernel(...)  ::kops::launch_kernel(nullptr, KOPS_WITHOUT_CAST(__VA_ARGS__))
#define cudaLaunchCooperativeKernel(...)                                                                               \
    ::kops::launch_kernel("cudaLaunchAttributeCooperative", KOPS_WITHOUT_CAST(__VA_ARGS__))

enum cudaLaunchAttributeID {
    cudaLaunchAttributeCooperative = 2,
    cudaLaunchAttributeClusterDimension = 4,
    cudaLaunchAttributeProgrammaticStreamSerialization = 6,
    cudaLaunchAttributePriority = 8,
};
union cudaLaunchAttributeValue {
    int cooperative;
    struct {
        unsigned x, y, z;
    } clusterDim;
    int programmaticStreamSerializationAllowed;
    int priority;
};
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes = 0;
    cudaStream_t stream = nullptr;
    cudaLaunchAttribute *attrs = nullptr;
    unsigned numAttrs = 0;
};
// Attributes hold for the launch that follows them.
template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...), A &&...arguments)
{
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const cudaLaunchAttributeValue &value = config->attrs[i].val;
        switch (config->attrs[i].id) {
        case cudaLaunchAttributeCooperative:
            kops::cuda("cudaLaunchAttribute", {"cudaLaunchAttributeCooperative", value.cooperative});
            break;
        case cudaLaunchAttributeClusterDimension:
            kops::cuda("cudaLaunchAttribute", {"cudaLaunchAttributeClusterDimension", value.clusterDim.x,
                                               value.clusterDim.y, value.clusterDim.z});
            break;
        case cudaLaunchAttributeProgrammaticStreamSerialization:
        case cudaLaunchAttributePriority:
            break; // hints
        }
    }
    kernel(std::forward<A>(arguments)...);
    kops::kops_launch(config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream);
    return cudaSuccess;
}

// ---- Functions of the runtime

#define KOPS_CUDA(NAME, PARAMETERS, ...)                                                                               \
    inline cudaError_t NAME PARAMETERS                                                                                 \
    {                                                                                                                  \
        return kops::cuda(#NAME, {__VA_ARGS__});                                                                       \
    }
#define KOPS_CUDA_OUT(NAME, OUT, PARAMETERS, ...)                                                                      \
    inline cudaError_t NAME PARAMETERS                                                                                 \
    {                                                                                                                  \
        return kops::cuda_out(OUT, #NAME, {__VA_ARGS__});                                                              \
    }
#define KOPS_TYPED_OUT(NAME, OUT, PARAMETERS, ...) template <class T> KOPS_CUDA_OUT(NAME, OUT, PARAMETERS, __VA_ARGS__)
#define KOPS_OF_KERNEL(NAME, PARAMETERS, ...)                                                                          \
    template <class K> KOPS_CUDA(NAME, PARAMETERS, kops::kernel_name(kernel).c_str(), __VA_ARGS__)

KOPS_CUDA(cudaGetLastError, ())
KOPS_CUDA(cudaPeekAtLastError, ())
KOPS_CUDA(cudaDeviceSynchronize, ())
KOPS_CUDA(cudaDeviceReset, ())
KOPS_CUDA(cudaProfilerStart, ())
KOPS_CUDA(cudaProfilerStop, ())

KOPS_CUDA(cudaSetDevice, (int device), device)
KOPS_CUDA_OUT(cudaGetDevice, device, (int *device))
KOPS_CUDA_OUT(cudaGetDeviceCount, count, (int *count))
KOPS_CUDA_OUT(cudaDeviceGetAttribute, value, (int *value, cudaDeviceAttr attribute, int device), attribute, device)
KOPS_CUDA_OUT(cudaDriverGetVersion, version, (int *version))
KOPS_CUDA_OUT(cudaRuntimeGetVersion, version, (int *version))
KOPS_CUDA_OUT(cudaDeviceCanAccessPeer, can, (int *can, int device, int peer), device, peer)
KOPS_CUDA(cudaDeviceEnablePeerAccess, (int peer, unsigned flags), peer, flags)
KOPS_CUDA(cudaDeviceSetLimit, (cudaLimit limit, size_t value), limit, value)
KOPS_CUDA_OUT(cudaDeviceGetLimit, value, (size_t * value, cudaLimit limit), limit)
KOPS_CUDA(cudaDeviceSetCacheConfig, (cudaFuncCache config), config)
KOPS_CUDA(cudaDeviceSetSharedMemConfig, (cudaSharedMemConfig config), config)

KOPS_TYPED_OUT(cudaMalloc, pointer, (T * *pointer, size_t size), size)
KOPS_TYPED_OUT(cudaMallocAsync, pointer, (T * *pointer, size_t size, cudaStream_t stream), size, stream)
KOPS_TYPED_OUT(cudaMallocManaged, pointer, (T * *pointer, size_t size, unsigned flags = cudaMemAttachGlobal), size,
               flags)
KOPS_TYPED_OUT(cudaMallocHost, pointer, (T * *pointer, size_t size, unsigned flags = 0), size, flags)
KOPS_TYPED_OUT(cudaHostAlloc, pointer, (T * *pointer, size_t size, unsigned flags), size, flags)
KOPS_TYPED_OUT(cudaHostGetDevicePointer, device, (T * *device, void *host, unsigned flags), host, flags)
KOPS_CUDA(cudaFree, (void *pointer), pointer)
KOPS_CUDA(cudaFreeAsync, (void *pointer, cudaStream_t stream), pointer, stream)
KOPS_CUDA(cudaFreeHost, (void *pointer), pointer)
KOPS_CUDA(cudaHostRegister, (void *pointer, size_t size, unsigned flags), pointer, size, flags)
KOPS_CUDA(cudaHostUnregister, (void *pointer), pointer)
KOPS_CUDA(cudaMemcpy, (void *to, const void *from, size_t size, cudaMemcpyKind kind), to, from, size, kind)
KOPS_CUDA(cudaMemcpyAsync,
          (void *to, const void *from, size_t size, cudaMemcpyKind kind, cudaStream_t stream = nullptr), to, from, size,
          kind, stream)
KOPS_CUDA(cudaMemcpyPeer, (void *to, int to_device, const void *from, int from_device, size_t size), to, to_device,
          from, from_device, size)
KOPS_CUDA(cudaMemcpy2D,
          (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
           cudaMemcpyKind kind),
          to, to_pitch, from, from_pitch, width, height, kind)
KOPS_CUDA(cudaMemcpy2DAsync,
          (void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
           cudaMemcpyKind kind, cudaStream_t stream = nullptr),
          to, to_pitch, from, from_pitch, width, height, kind, stream)
KOPS_CUDA(cudaMemset, (void *to, int value, size_t size), to, value, size)
KOPS_CUDA(cudaMemsetAsync, (void *to, int value, size_t size, cudaStream_t stream = nullptr), to, value, size, stream)
KOPS_CUDA(cudaMemset2D, (void *to, size_t pitch, int value, size_t width, size_t height), to, pitch, value, width,
          height)
KOPS_CUDA(cudaMemPrefetchAsync, (const void *pointer, size_t size, int device, cudaStream_t stream = nullptr), pointer,
          size, device, stream)

KOPS_CUDA_OUT(cudaStreamCreate, stream, (cudaStream_t * stream))
KOPS_CUDA_OUT(cudaStreamCreateWithFlags, stream, (cudaStream_t * stream, unsigned flags), flags)
KOPS_CUDA_OUT(cudaStreamCreateWithPriority, stream, (cudaStream_t * stream, unsigned flags, int priority), flags,
              priority)
KOPS_CUDA(cudaStreamDestroy, (cudaStream_t stream), stream)
KOPS_CUDA(cudaStreamSynchronize, (cudaStream_t stream), stream)
KOPS_CUDA(cudaStreamQuery, (cudaStream_t stream), stream)
KOPS_CUDA(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags = 0), stream, event, flags)
KOPS_CUDA_OUT(cudaEventCreate, event, (cudaEvent_t * event))
KOPS_CUDA_OUT(cudaEventCreateWithFlags, event, (cudaEvent_t * event, unsigned flags), flags)
KOPS_CUDA_OUT(cudaEventCreate, event, (cudaEvent_t * event, unsigned flags), flags)
KOPS_CUDA(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream = nullptr), event, stream)
KOPS_CUDA(cudaEventSynchronize, (cudaEvent_t event), event)
KOPS_CUDA(cudaEventQuery, (cudaEvent_t event), event)
KOPS_CUDA(cudaEventDestroy, (cudaEvent_t event), event)

KOPS_OF_KERNEL(cudaFuncSetAttribute, (K kernel, cudaFuncAttribute attribute, int value), attribute, value)
KOPS_OF_KERNEL(cudaFuncSetCacheConfig, (K kernel, cudaFuncCache config), config)
KOPS_OF_KERNEL(cudaFuncSetSharedMemConfig, (K kernel, cudaSharedMemConfig config), config)
template <class K>
KOPS_CUDA_OUT(cudaOccupancyMaxActiveBlocksPerMultiprocessor, blocks,
              (int *blocks, K kernel, int threads, size_t shared), kops::kernel_name(kernel).c_str(), threads, shared)
#undef KOPS_CUDA
#undef KOPS_CUDA_OUT
#undef KOPS_TYPED_OUT
#undef KOPS_OF_KERNEL

#define cudaFuncSetAttribute(...)   cudaFuncSetAttribute(KOPS_WITHOUT_CAST(__VA_ARGS__))
#define cudaFuncSetCacheConfig(...) cudaFuncSetCacheConfig(KOPS_WITHOUT_CAST(__VA_ARGS__))

// Two results of a function are asked for one by one: the last argument of the call says which.
inline cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    kops::cuda_out(total, "cudaMemGetInfo", {1});
    return kops::cuda_out(available, "cudaMemGetInfo", {0});
}
inline cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    kops::cuda_out(greatest, "cudaDeviceGetStreamPriorityRange", {1});
    return kops::cuda_out(least, "cudaDeviceGetStreamPriorityRange", {0});
}
template <class T> cudaError_t cudaMallocPitch(T **pointer, size_t *pitch, size_t width, size_t height)
{
    *pitch = (width + 511) / 512 * 512;
    return cudaMalloc(pointer, *pitch * height);
}
template <class K>
cudaError_t cudaOccupancyMaxPotentialBlockSize(int *grid, int *block, K kernel, size_t shared = 0, int limit = 0)
{
    std::string name = kops::kernel_name(kernel);
    kops::cuda_out(grid, "cudaOccupancyMaxPotentialBlockSize", {name.c_str(), shared, limit, 0});
    return kops::cuda_out(block, "cudaOccupancyMaxPotentialBlockSize", {name.c_str(), shared, limit, 1});
}
// The table gives nanoseconds.
inline cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    int64_t nanoseconds = 0;
    cudaError_t error = kops::cuda_out(&nanoseconds, "cudaEventElapsedTime", {start, end});
    *milliseconds = (float)((double)nanoseconds / 1e6);
    return error;
}

struct cudaFuncAttributes {
    size_t sharedSizeBytes, constSizeBytes, localSizeBytes;
    int maxThreadsPerBlock, numRegs, ptxVersion, binaryVersion, cacheModeCA, maxDynamicSharedSizeBytes,
        preferredShmemCarveout;
};
template <class K> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, K kernel)
{
    std::string name = kops::kernel_name(kernel);
    cudaError_t error = cudaSuccess;
    *attributes = {};
#define _(FIELD)                                                                                                       \
    if (error == cudaSuccess)                                                                                          \
        error = kops::cuda_out(&attributes->FIELD, "cudaFuncGetAttributes", {name.c_str(), #FIELD});
    _(sharedSizeBytes)
    _(constSizeBytes)
    _(localSizeBytes)
    _(maxThreadsPerBlock)
    _(numRegs)
    _(ptxVersion)
    _(binaryVersion)
    _(maxDynamicSharedSizeBytes)
#undef _
    return error;
}

// Constants and variables of the device go by their names in the source.
template <class... A> cudaError_t kops_symbol(const char *function, const char *symbol, const A &...arguments)
{
    return kops::cuda(function, {symbol, arguments...});
}
#define cudaMemcpyToSymbol(SYMBOL, ...)       kops_symbol("cudaMemcpyToSymbol", #SYMBOL, __VA_ARGS__)
#define cudaMemcpyToSymbolAsync(SYMBOL, ...)  kops_symbol("cudaMemcpyToSymbol", #SYMBOL, __VA_ARGS__)
#define cudaMemcpyFromSymbol(TO, SYMBOL, ...) kops_symbol("cudaMemcpyFromSymbol", #SYMBOL, (void *)(TO), __VA_ARGS__)
#define cudaMemcpyFromSymbolAsync(TO, SYMBOL, ...)                                                                     \
    kops_symbol("cudaMemcpyFromSymbol", #SYMBOL, (void *)(TO), __VA_ARGS__)
#define cudaGetSymbolAddress(POINTER, SYMBOL) ::kops::cuda_out(POINTER, "cudaGetSymbolAddress", {#SYMBOL})
#define cudaGetSymbolSize(SIZE, SYMBOL)       ::kops::cuda_out(SIZE, "cudaGetSymbolSize", {#SYMBOL})

struct cudaDeviceProp {
    char name[256];
    size_t totalGlobalMem, sharedMemPerBlock, totalConstMem, sharedMemPerMultiprocessor, sharedMemPerBlockOptin,
        reservedSharedMemPerBlock, memPitch, textureAlignment;
    int regsPerBlock, warpSize, maxThreadsPerBlock, maxThreadsDim[3], maxGridSize[3], major, minor, multiProcessorCount,
        integrated, canMapHostMemory, concurrentKernels, ECCEnabled, pciBusID, pciDeviceID, asyncEngineCount,
        unifiedAddressing, memoryBusWidth, l2CacheSize, persistingL2CacheMaxSize, maxThreadsPerMultiProcessor,
        regsPerMultiprocessor, managedMemory, pageableMemoryAccess, concurrentManagedAccess, cooperativeLaunch,
        maxBlocksPerMultiProcessor, clusterLaunch, clockRate, memoryClockRate;
};
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device)
{
    *properties = {};
    kops::cuda("cudaDeviceGetName", {(void *)properties->name, sizeof(properties->name), device});
    cudaError_t error = kops::cuda_out(&properties->totalGlobalMem, "cudaDeviceTotalMem", {device});
#define _(FIELD, ATTRIBUTE)                                                                                            \
    if (error == cudaSuccess)                                                                                          \
        error = kops::cuda_out(&properties->FIELD, "cudaDeviceGetAttribute", {cudaDevAttr##ATTRIBUTE, device});
    _(sharedMemPerBlock, MaxSharedMemoryPerBlock)
    _(totalConstMem, TotalConstantMemory)
    _(sharedMemPerMultiprocessor, MaxSharedMemoryPerMultiprocessor)
    _(sharedMemPerBlockOptin, MaxSharedMemoryPerBlockOptin)
    _(reservedSharedMemPerBlock, ReservedSharedMemoryPerBlock)
    _(memPitch, MaxPitch)
    _(textureAlignment, TextureAlignment)
    _(regsPerBlock, MaxRegistersPerBlock)
    _(warpSize, WarpSize)
    _(maxThreadsPerBlock, MaxThreadsPerBlock)
    _(maxThreadsDim[0], MaxBlockDimX)
    _(maxThreadsDim[1], MaxBlockDimY)
    _(maxThreadsDim[2], MaxBlockDimZ)
    _(maxGridSize[0], MaxGridDimX)
    _(maxGridSize[1], MaxGridDimY)
    _(maxGridSize[2], MaxGridDimZ)
    _(major, ComputeCapabilityMajor)
    _(minor, ComputeCapabilityMinor)
    _(multiProcessorCount, MultiProcessorCount)
    _(integrated, Integrated)
    _(canMapHostMemory, CanMapHostMemory)
    _(concurrentKernels, ConcurrentKernels)
    _(ECCEnabled, EccEnabled)
    _(pciBusID, PciBusId)
    _(pciDeviceID, PciDeviceId)
    _(asyncEngineCount, AsyncEngineCount)
    _(unifiedAddressing, UnifiedAddressing)
    _(memoryBusWidth, GlobalMemoryBusWidth)
    _(l2CacheSize, L2CacheSize)
    _(persistingL2CacheMaxSize, MaxPersistingL2CacheSize)
    _(maxThreadsPerMultiProcessor, MaxThreadsPerMultiProcessor)
    _(regsPerMultiprocessor, MaxRegistersPerMultiprocessor)
    _(managedMemory, ManagedMemory)
    _(pageableMemoryAccess, PageableMemoryAccess)
    _(concurrentManagedAccess, ConcurrentManagedAccess)
    _(cooperativeLaunch, CooperativeLaunch)
    _(maxBlocksPerMultiProcessor, MaxBlocksPerMultiprocessor)
    _(clusterLaunch, ClusterLaunch)
    _(clockRate, ClockRate)
    _(memoryClockRate, MemoryClockRate)
#undef _
    return error;
}

// ---- Libraries beside the runtime: cuBLAS, cuDNN, cuRAND

namespace kops
{
// A function of a library, called in the real library, whose address the Python runtime knows.
template <class F> struct LibraryFunction;
template <class R, class... A> struct LibraryFunction<R(A...)> {
    const char *library, *name;
    R operator()(A... arguments) const
    {
        int64_t address = 0;
        cuda("library", {library, name}, &address);
        if (!address)
            throw c10::NotImplementedError(std::string(name) + ": the library " + library + " is not available here");
        return ((R(*)(A...))address)(arguments...);
    }
};
} // namespace kops
