// torch's names for CUDA: checks, streams, guards, properties of devices.
#pragma once
#include <kops/device.h>
#include <kops/ops.h>

namespace kops
{
inline void check_cuda(cudaError_t error)
{
    if (error != cudaSuccess)
        fail<c10::Error>(std::string("CUDA error: ") + cudaGetErrorString(error));
}
} // namespace kops

#define C10_CUDA_CHECK(EXPRESSION)                                                                                     \
    do {                                                                                                               \
        ::kops::check_cuda(EXPRESSION);                                                                                \
    } while (0)
#define C10_CUDA_CHECK_WARN(EXPRESSION)                                                                                \
    do {                                                                                                               \
        const cudaError_t kops_error = EXPRESSION;                                                                     \
        if (kops_error != cudaSuccess)                                                                                 \
            TORCH_WARN("CUDA warning: ", cudaGetErrorString(kops_error));                                              \
    } while (0)
#define AT_CUDA_CHECK(EXPRESSION)          C10_CUDA_CHECK(EXPRESSION)
#define TORCH_CUDA_CHECK(EXPRESSION)       C10_CUDA_CHECK(EXPRESSION)
#define C10_CUDA_ERROR_HANDLED(EXPRESSION) (EXPRESSION)
#define C10_CUDA_IGNORE_ERROR(EXPRESSION)  ((void)(EXPRESSION))
#define C10_CUDA_CLEAR_ERROR()             ((void)cudaGetLastError())
#define C10_CUDA_KERNEL_LAUNCH_CHECK()     C10_CUDA_CHECK(cudaGetLastError())
#define CUDA_KERNEL_LOOP_TYPE(i, n, type)                                                                              \
    for (type i = (type)blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += (type)blockDim.x * gridDim.x)
#define CUDA_KERNEL_LOOP(i, n) CUDA_KERNEL_LOOP_TYPE(i, n, int)

namespace c10::cuda
{
inline DeviceIndex current_device()
{
    int device = 0;
    C10_CUDA_CHECK(cudaGetDevice(&device));
    return (DeviceIndex)device;
}
inline DeviceIndex device_count()
{
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? (DeviceIndex)count : 0;
}
inline void set_device(DeviceIndex device)
{
    C10_CUDA_CHECK(cudaSetDevice(device));
}
inline void device_synchronize()
{
    C10_CUDA_CHECK(cudaDeviceSynchronize());
}

class CUDAStream
{
    cudaStream_t stream_;
    DeviceIndex device_;

  public:
    CUDAStream(cudaStream_t stream, DeviceIndex device) : stream_(stream), device_(device)
    {
    }
    operator cudaStream_t() const
    {
        return stream_;
    }
    cudaStream_t stream() const
    {
        return stream_;
    }
    DeviceIndex device_index() const
    {
        return device_;
    }
    Device device() const
    {
        return Device(kCUDA, device_);
    }
    int64_t id() const
    {
        return (int64_t)stream_;
    }
    bool query() const
    {
        return cudaStreamQuery(stream_) == cudaSuccess;
    }
    void synchronize() const
    {
        C10_CUDA_CHECK(cudaStreamSynchronize(stream_));
    }
    bool operator==(const CUDAStream &other) const
    {
        return stream_ == other.stream_ && device_ == other.device_;
    }
    bool operator!=(const CUDAStream &other) const
    {
        return !(*this == other);
    }
};

inline CUDAStream stream_of(const char *function, DeviceIndex device, int high_priority = 0)
{
    cudaStream_t stream = nullptr;
    if (device < 0)
        device = current_device();
    C10_CUDA_CHECK(kops::cuda_out(&stream, function, {device, high_priority}));
    return {stream, device};
}
inline CUDAStream getCurrentCUDAStream(DeviceIndex device = -1)
{
    return stream_of("getCurrentCUDAStream", device);
}
inline CUDAStream getDefaultCUDAStream(DeviceIndex device = -1)
{
    return stream_of("getDefaultCUDAStream", device);
}
inline CUDAStream getStreamFromPool(bool high_priority = false, DeviceIndex device = -1)
{
    return stream_of("getStreamFromPool", device, high_priority);
}
inline CUDAStream getStreamFromExternal(cudaStream_t stream, DeviceIndex device)
{
    return {stream, device};
}
inline void setCurrentCUDAStream(CUDAStream stream)
{
    C10_CUDA_CHECK(kops::cuda("setCurrentCUDAStream", {stream.stream(), stream.device_index()}));
}

// The current device until the guard's end.
class OptionalCUDAGuard
{
    DeviceIndex before = -1;

  public:
    OptionalCUDAGuard() = default;
    OptionalCUDAGuard(std::optional<Device> device)
    {
        if (device && device->is_cuda())
            set_index(device->index());
    }
    OptionalCUDAGuard(std::optional<DeviceIndex> index)
    {
        if (index)
            set_index(*index);
    }
    OptionalCUDAGuard(const OptionalCUDAGuard &) = delete;
    ~OptionalCUDAGuard()
    {
        reset();
    }
    void set_index(DeviceIndex index)
    {
        if (before < 0)
            before = cuda::current_device();
        if (index >= 0)
            set_current(index);
    }
    void set_device(Device device)
    {
        set_index(device.index());
    }
    void reset_device(Device device)
    {
        set_device(device);
    }
    void reset()
    {
        if (before >= 0)
            cudaSetDevice(before);
        before = -1;
    }

  private:
    static void set_current(DeviceIndex index)
    {
        cuda::set_device(index);
    }
};
class CUDAGuard : public OptionalCUDAGuard
{
  public:
    explicit CUDAGuard(DeviceIndex index) : OptionalCUDAGuard(std::optional<DeviceIndex>(index))
    {
    }
    explicit CUDAGuard(Device device) : OptionalCUDAGuard(std::optional<Device>(device))
    {
        TORCH_CHECK(device.is_cuda(), "CUDAGuard needs a CUDA device, got ", device);
    }
};
class CUDAStreamGuard
{
    CUDAGuard device;
    CUDAStream before;

  public:
    explicit CUDAStreamGuard(CUDAStream stream) : device(stream.device_index()), before(getCurrentCUDAStream())
    {
        setCurrentCUDAStream(stream);
    }
    CUDAStreamGuard(const CUDAStreamGuard &) = delete;
    ~CUDAStreamGuard()
    {
        kops::cuda("setCurrentCUDAStream", {before.stream(), before.device_index()});
    }
};
} // namespace c10::cuda

namespace at
{
using OptionalDeviceGuard = c10::cuda::OptionalCUDAGuard;
class DeviceGuard : public OptionalDeviceGuard
{
  public:
    explicit DeviceGuard(Device device) : OptionalDeviceGuard(std::optional<Device>(device))
    {
    }
};

namespace cuda
{
using namespace c10::cuda;

inline bool is_available()
{
    return device_count() > 0;
}
inline cudaDeviceProp *getDeviceProperties(DeviceIndex device)
{
    static std::map<DeviceIndex, cudaDeviceProp> known;
    auto found = known.find(device);
    if (found == known.end()) {
        cudaDeviceProp properties;
        C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
        found = known.emplace(device, properties).first;
    }
    return &found->second;
}
inline cudaDeviceProp *getCurrentDeviceProperties()
{
    return getDeviceProperties(current_device());
}
inline int warp_size()
{
    return 32;
}
template <class T, class U> constexpr T ATenCeilDiv(T a, U b)
{
    return (a + b - 1) / b;
}

// An event of torch. Timing needs the flag cudaEventDefault.
class CUDAEvent
{
    cudaEvent_t event_ = nullptr;

  public:
    explicit CUDAEvent(unsigned flags = cudaEventDisableTiming)
    {
        C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, flags));
    }
    CUDAEvent(const CUDAEvent &) = delete;
    ~CUDAEvent()
    {
        cudaEventDestroy(event_);
    }
    operator cudaEvent_t() const
    {
        return event_;
    }
    cudaEvent_t event() const
    {
        return event_;
    }
    void record()
    {
        record(getCurrentCUDAStream());
    }
    void record(const CUDAStream &stream)
    {
        C10_CUDA_CHECK(cudaEventRecord(event_, stream));
    }
    void block(const CUDAStream &stream)
    {
        C10_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0));
    }
    void synchronize() const
    {
        C10_CUDA_CHECK(cudaEventSynchronize(event_));
    }
    float elapsed_time(const CUDAEvent &end) const
    {
        float milliseconds = 0;
        C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, event_, end.event_));
        return milliseconds;
    }
};

namespace detail
{
constexpr int CUDA_NUM_THREADS = 1024;
inline int GET_BLOCKS(int64_t count, int64_t threads = CUDA_NUM_THREADS)
{
    TORCH_INTERNAL_ASSERT(count > 0, "CUDA kernel launch blocks must be positive, but got N=", count);
    int64_t blocks = (count - 1) / threads + 1;
    TORCH_INTERNAL_ASSERT(blocks <= INT32_MAX, "Can't schedule too many blocks on CUDA device");
    return (int)blocks;
}
} // namespace detail
} // namespace cuda
} // namespace at

namespace torch::cuda
{
using namespace at::cuda;
inline void synchronize(int64_t = -1)
{
    C10_CUDA_CHECK(cudaDeviceSynchronize());
}
} // namespace torch::cuda
