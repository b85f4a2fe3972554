// Wrappers as extensions have them, by kind: all of it compiles.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/irange.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <cudnn.h>
#include <curand.h>
#include <curand_kernel.h>
#include <torch/extension.h>

#define CHECK_INPUT(x)                                                                                                 \
    TORCH_CHECK(x.is_cuda(), #x " must be a CUDA tensor");                                                             \
    TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")

struct Shape {
    int rows, columns;
};
template <typename T, int N> void scale(T *out, const T *__restrict__ in, Shape shape, float factor = 1.0f)
{
    kops::kops_stub(__PRETTY_FUNCTION__, out, in, shape, factor);
}
void fill(float *out, int count)
{
    kops::kops_stub(__PRETTY_FUNCTION__, out, count);
}
void strided(at::PackedTensorAccessor32<float, 2, at::RestrictPtrTraits> out)
{
    kops::kops_stub(__PRETTY_FUNCTION__, out);
}
float constants[16];
double table[4];

// New tensors, options, types.
std::vector<torch::Tensor> created(torch::Tensor x, const std::vector<int64_t> &sizes)
{
    int n = (int)x.size(0);
    auto options = torch::TensorOptions().dtype(torch::kFloat32).device(x.device()).requires_grad(false);
    auto on_gpu = torch::dtype(torch::kInt64).device(torch::kCUDA, x.get_device());
    auto cpu = at::device(at::kCPU).dtype(at::kByte).pinned_memory(true);
    return {torch::empty({n, x.size(1)}, options),
            torch::zeros(sizes, on_gpu),
            torch::ones_like(x, cpu),
            torch::empty_like(x, x.options().dtype(torch::kHalf), at::MemoryFormat::Contiguous),
            torch::full({2, 3}, 1.5, x.options()),
            torch::arange(0, 10, 2, torch::kInt32),
            torch::empty(x.sizes(), x.options().memory_format(at::MemoryFormat::ChannelsLast)),
            at::empty_strided({2, 3}, {3, 1}, x.options()),
            torch::rand({4}, torch::kCUDA),
            torch::randint(10, {4}, on_gpu),
            torch::tensor({1, 2, 3}, torch::kInt64),
            torch::tensor({{1.0f, 2.0f}, {3.0f, 4.0f}}),
            torch::tensor(2.0),
            torch::from_blob(constants, {4, 4}, torch::kFloat32),
            x.new_zeros({n}),
            torch::eye(3),
            torch::zeros({}, options)};
}

// What a handle knows; indices; operators.
int64_t known(const at::Tensor &x, c10::optional<torch::Tensor> bias)
{
    CHECK_INPUT(x);
    TORCH_CHECK(x.dim() == 2 && x.scalar_type() == at::ScalarType::Float, "x has ", x.sizes(), " of ", x.dtype());
    TORCH_CHECK(x.dtype() == torch::kFloat32);
    TORCH_CHECK_EQ(x.size(-1), x.stride(0));
    TORCH_CHECK_VALUE(x.sizes() == at::IntArrayRef({2, 3}), "sizes");
    AT_ASSERTM(x.device().is_cuda(), "device ", x.device(), x.options(), x.type());
    auto sizes = x.sizes().vec();
    sizes.back() *= 2;
    if (bias.has_value() && bias->defined())
        return bias.value().numel() + x.nbytes() + x.element_size() + x.storage_offset();
    for (auto i : c10::irange(x.dim()))
        sizes[i] += x.sizes()[i];
    const float *data = bias ? bias->data_ptr<float>() : nullptr;
    return data == nullptr ? (int64_t)x.const_data_ptr<float>() : (int64_t)x.mutable_data_ptr();
}
at::Tensor computed(at::Tensor x, at::Tensor y, double alpha)
{
    using namespace torch::indexing;
    at::Tensor z = (x + y * 2 - 1.5 / x) % 3;
    z += y;
    z *= alpha;
    z = x.add(y, 2).softmax(-1).sum({0, 1}, /*keepdim=*/true).to(torch::kHalf).contiguous();
    z = at::softmax(x, 1, at::kFloat).view({-1, 4}).transpose(0, 1).permute({1, 0}).reshape(x.sizes());
    z = x.index({Slice(None, 3), 0, Ellipsis, y});
    x.index_put_({Slice(), 1}, 2.0);
    x[0][1] = y[2];
    auto [values, places] = x.max(1);
    auto [top, at] = torch::topk(x, 3);
    auto three = torch::native_layer_norm(x, {4}, y, c10::nullopt, 1e-5);
    z = torch::where(x > 0, x, -x) + std::get<0>(three) + values + top + places + at;
    z = torch::conv2d(x, y, {}, 1, {1, 1}, 1, 2) + torch::linear(x, y) + torch::max_pool2d(x, {2, 2}, 2);
    z = torch::cat({x, y}, 1) + torch::stack({x, y}) + at::matmul(x, y).t() + torch::bmm(x, y.unsqueeze(0));
    z = x.clamp(0, 1).clamp_min(0.5) + x.pow(2) + torch::pow(x, y) + x.mean() + x.mean(1) + x.var(0, false) + x.norm();
    z = torch::nn::functional::normalize(x, torch::nn::functional::NormalizeFuncOptions().p(2).dim(1)) +
        x.to(x.dtype());
    at::add_out(z, x, y);
    z.copy_(x).zero_().fill_(3).uniform_(-1, 1).transpose_(0, 1);
    for (const auto &part : x.chunk(2))
        z = z + part;
    float first = x.item<float>() + y.item().toFloat();
    return at::allclose(x, y) && first > 0 ? z.to(x.device(), at::kFloat) : x.cpu();
}

// Dispatch, half types, launches.
void launched(torch::Tensor out, torch::Tensor in)
{
    const at::cuda::OptionalCUDAGuard guard(at::device_of(in));
    const c10::cuda::CUDAGuard device_guard(in.device());
    cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    constexpr int threads = 256;
    const int64_t n = in.numel();
    dim3 grid((n + threads - 1) / threads), block(16, 16);
    AT_DISPATCH_FLOATING_TYPES_AND_HALF(in.scalar_type(), "launched", ([&] {
                                            scale<scalar_t, 4>(out.data_ptr<scalar_t>(), in.data_ptr<scalar_t>(),
                                                               {1, 2}),
                                                kops::kops_launch(grid, threads, 0, stream);
                                        }));
    AT_DISPATCH_FLOATING_TYPES_AND2(at::ScalarType::Half, at::kBFloat16, in.type(), "launched", [&] {
        using acc_t = at::acc_type<scalar_t, true>;
        acc_t sum = static_cast<acc_t>(scalar_t(1.5f) * scalar_t(2));
        (void)sum;
    });
    AT_DISPATCH_ALL_TYPES_AND_COMPLEX_AND4(at::kHalf, at::kBFloat16, at::kBool, at::kFloat8_e4m3fn, in.scalar_type(),
                                           "all", [&] { (void)sizeof(scalar_t); });
    AT_DISPATCH_INTEGRAL_TYPES_AND(at::kBool, in.scalar_type(), "integral", [&] { (void)sizeof(scalar_t); });
    AT_DISPATCH_INDEX_TYPES(in.scalar_type(), "index", [&] { (void)sizeof(index_t); });
    int64_t width =
        AT_DISPATCH_REDUCED_FLOATING_TYPES(in.scalar_type(), "width", [&] { return (int64_t)sizeof(scalar_t); });
    AT_DISPATCH_V2(in.scalar_type(), "v2", AT_WRAP([&] { width += sizeof(scalar_t); }), AT_EXPAND(AT_ALL_TYPES),
                   AT_EXPAND(AT_COMPLEX_TYPES), at::kHalf, at::kBool);
    AT_DISPATCH_SWITCH(in.scalar_type(), "switch", AT_DISPATCH_CASE(at::kInt, [&] { width = sizeof(scalar_t); }));
    scale<__half, 2>(reinterpret_cast<__half *>(out.data_ptr<at::Half>()), (const half *)in.data_ptr(), Shape{1, 2}, 2),
        kops::kops_launch(1, 32);
    strided(out.packed_accessor32<float, 2, torch::RestrictPtrTraits>()), kops::kops_launch(dim3(1, 2), dim3(3));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    AT_CUDA_CHECK(cudaGetLastError());
}

// The CUDA runtime.
void runtime(float *device, float *host, size_t size)
{
    cudaError_t error = cudaMalloc(&device, size);
    error = cudaMalloc((void **)&device, size);
    if (error != cudaSuccess)
        printf("%s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error));
    cudaStream_t stream;
    cudaEvent_t start, stop;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaEventCreate(&start);
    cudaEventCreate(&stop);
    cudaEventRecord(start);
    cudaMemcpy(device, host, size, cudaMemcpyHostToDevice);
    cudaMemcpyAsync(host, device, size, cudaMemcpyDeviceToHost, stream);
    cudaMemset(device, 0, size);
    cudaMemcpyToSymbol(constants, host, sizeof(float) * 16);
    cudaMemcpyToSymbol(table, host, sizeof(table), 0, cudaMemcpyHostToDevice);
    cudaMemcpyFromSymbol(host, constants, sizeof(constants));
    float *symbol;
    cudaGetSymbolAddress((void **)&symbol, constants);
    cudaFuncSetAttribute(scale<float, 4>, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 * 1024);
    cudaFuncSetAttribute((const void *)scale<float, 4>, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 * 1024);
    cudaFuncSetCacheConfig(fill, cudaFuncCachePreferShared);
    int blocks, threads, count, value;
    cudaDeviceProp properties;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, fill, 256, 0);
    cudaOccupancyMaxPotentialBlockSize(&blocks, &threads, fill, 0, 0);
    cudaGetDeviceProperties(&properties, 0);
    cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0);
    void *arguments[] = {&device, &count};
    cudaLaunchKernel((void *)fill, dim3(1), dim3(32), arguments, 0, stream);
    cudaLaunchKernel(scale<float, 4>, 1, 32, arguments);
    cudaLaunchCooperativeKernel((const void *)fill, blocks, threads, arguments, 0, nullptr);
    cudaLaunchConfig_t config{};
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeClusterDimension;
    attribute[0].val.clusterDim = {2, 1, 1};
    config.attrs = attribute;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, fill, device, 3);
    float milliseconds;
    cudaEventElapsedTime(&milliseconds, start, stop);
    cudaDeviceSynchronize();
    at::cuda::CUDAEvent event;
    event.record(at::cuda::getCurrentCUDAStream());
    float4 vector = make_float4(1, 2, 3, 4);
    uint3 three = dim3(properties.maxGridSize[0], max(1, 2), min(3u, 4u));
    __half2 pair = __floats2half2_rn(vector.x, vector.y);
    unsigned bits =
        __half_as_ushort(__low2float(pair)) + __float_as_uint(__bfloat162float(__float2bfloat16(1.5f))) + three.x;
    __nv_fp8_e4m3 small(1.5f);
    cuComplex product = cuCmulf(make_cuComplex(1, 2), make_cuFloatComplex((float)small, (float)bits));
    curandState *states;
    cudaMalloc(&states, sizeof(curandState) * 16);
    cudaFree(device);
    TORCH_CHECK(product.x > 0);
}

// Libraries.
void libraries(float *a, const float *b)
{
    cublasHandle_t handle = at::cuda::getCurrentCUDABlasHandle();
    const float one = 1.0f, zero = 0.0f;
    TORCH_CUDABLAS_CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_T, 1, 2, 3, &one, a, 1, b, 2, &zero, a, 3));
    cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 2, 3, &one, a, CUDA_R_16F, 1, b, CUDA_R_16BF, 2, &zero, a,
                 CUDA_R_32F, 3, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT_TENSOR_OP);
    cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH);
    cudnnTensorDescriptor_t descriptor;
    cudnnCreateTensorDescriptor(&descriptor);
    cudnnSetTensor4dDescriptor(descriptor, CUDNN_TENSOR_NCHW, CUDNN_DATA_FLOAT, 1, 2, 3, 4);
    curandGenerator_t generator;
    curandCreateGenerator(&generator, CURAND_RNG_PSEUDO_DEFAULT);
    curandGenerateUniform(generator, a, 4);
}

// Binding.
int overloaded(int x);
int overloaded(double x);
std::tuple<at::Tensor, int64_t> several(at::Tensor x, at::IntArrayRef sizes, std::optional<double> p,
                                        const std::string &mode, std::vector<at::Tensor> list, bool flag,
                                        at::ScalarType type, at::Device device);
int overloaded(int x)
{
    return x;
}
int overloaded(double x)
{
    return (int)x;
}
std::tuple<at::Tensor, int64_t> several(at::Tensor x, at::IntArrayRef sizes, std::optional<double>, const std::string &,
                                        std::vector<at::Tensor>, bool, at::ScalarType, at::Device)
{
    return {x, sizes[0]};
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)
{
    m.doc() = "A module.";
    m.def("created", &created, "New tensors.", py::arg("x"), py::arg("sizes") = std::vector<int64_t>{1, 2});
    m.def("known", torch::wrap_pybind_function(known), py::arg("x"), py::arg("bias") = py::none());
    m.def("computed", &computed, py::arg("x"), py::arg("y"), py::arg("alpha") = 1.0);
    m.def("launched", launched, py::call_guard<py::gil_scoped_release>());
    m.def("overloaded", py::overload_cast<int>(&overloaded));
    m.def("overloaded", static_cast<int (*)(double)>(&overloaded), py::arg("x").noconvert());
    m.def(
        "lambda",
        [](const at::Tensor &x, int64_t n) {
            return x.repeat({n, 1});
        },
        "A lambda.");
    m.def("several", &several);
}
TORCH_LIBRARY(example, m)
{
    m.def("twice(Tensor x, float by=2.0) -> Tensor");
    m.def("known", &known);
}
TORCH_LIBRARY_IMPL(example, CUDA, m)
{
    m.impl("twice", [](const at::Tensor &x, double by) { return x * by; });
}
