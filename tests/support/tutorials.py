"""Sources as tutorials for torch's load_inline write them, kernels and the C++ that launches them, with inputs and right results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

try:
    import torch
except ImportError:  # the texts are there without it
    torch = None  # type: ignore[assignment]


class Tutorial(NamedTuple):
    name: str
    cuda: str
    cpp: str
    function: str
    inputs: Callable[[str], tuple[Any, ...]]  # on a device
    expected: Callable[..., Any]


HEAD = """#include <torch/extension.h>
#include <cuda_runtime.h>

"""
VECTOR_ADD = HEAD + r"""
__global__ void vector_add_kernel(const float* a, const float* b, float* c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        c[i] = a[i] + b[i];
    }
}

// the wrapper
torch::Tensor vector_add(torch::Tensor a, torch::Tensor b) {
    auto c = torch::empty_like(a);
    int n = a.numel();
    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    vector_add_kernel<<<blocks, threads>>>(a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return c;
}
"""
SQUARE = r"""
__global__ void square_matrix_kernel(const float* matrix, float* result, int width, int height) {
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int col = blockIdx.x * blockDim.x + threadIdx.x;

    if (row < height && col < width) {
        int idx = row * width + col;
        result[idx] = matrix[idx] * matrix[idx];
    }
}

torch::Tensor square_matrix(torch::Tensor matrix) {
    const auto height = matrix.size(0);
    const auto width = matrix.size(1);

    auto result = torch::empty_like(matrix);

    dim3 threads_per_block(16, 16);
    dim3 number_of_blocks((width + threads_per_block.x - 1) / threads_per_block.x,
                          (height + threads_per_block.y - 1) / threads_per_block.y);

    square_matrix_kernel<<<number_of_blocks, threads_per_block>>>(
        matrix.data_ptr<float>(), result.data_ptr<float>(), width, height);

    return result;
}
"""
GREY = HEAD + r"""#include <c10/cuda/CUDAException.h>
#define CHECK_CUDA(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
#define CHECK_CONTIGUOUS(x) TORCH_CHECK(x.is_contiguous(), #x " must be contiguous")
#define CHECK_INPUT(x) CHECK_CUDA(x); CHECK_CONTIGUOUS(x)
#define CUDA_ERR(ans) { gpuAssert((ans), __FILE__, __LINE__); }

__global__ void rgb_to_grayscale_kernel(unsigned char* x, unsigned char* out, int n, int w, int h) {
    const int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (c < w && r < h) {
        const int i = r * w + c;
        out[i] = 0.2989f*x[i] + 0.5870f*x[i+n] + 0.1140f*x[i+2*n];
    }
}

inline unsigned int cdiv(unsigned int a, unsigned int b) { return (a + b - 1) / b; }

torch::Tensor rgb_to_grayscale(torch::Tensor input) {
    CHECK_INPUT(input);
    int h = input.size(1), w = input.size(2);
    TORCH_CHECK(input.dim() == 3 && h > 0, "a picture has 3 dimensions, not ", input.dim());
    printf("h*w: %d*%d\n", h, w);
    auto output = torch::empty({h, w}, input.options());
    dim3 tpb(16, 16);
    dim3 blocks(cdiv(w, tpb.x), cdiv(h, tpb.y));
    rgb_to_grayscale_kernel<<<blocks, tpb>>>(
        input.data_ptr<unsigned char>(), output.data_ptr<unsigned char>(), w*h, w, h);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return output;
}
"""
MATMUL = r"""
#include <ATen/cuda/CUDAContext.h>
constexpr int TILE_SIZE = 16;
#define BLOCK dim3(TILE_SIZE, TILE_SIZE)

__global__ void matmul_tiled(const float *__restrict__ A, const float *__restrict__ B, float *__restrict__ C, int M, int N, int K)
{
    __shared__ float a[TILE_SIZE][TILE_SIZE];
    __shared__ float b[TILE_SIZE][TILE_SIZE];
    int row = blockIdx.y * TILE_SIZE + threadIdx.y, col = blockIdx.x * TILE_SIZE + threadIdx.x;
    float sum = 0.0f;
    for (int t = 0; t < (K + TILE_SIZE - 1) / TILE_SIZE; ++t) {
        int x = t * TILE_SIZE + threadIdx.x, y = t * TILE_SIZE + threadIdx.y;
        a[threadIdx.y][threadIdx.x] = row < M && x < K ? A[row * K + x] : 0.0f;
        b[threadIdx.y][threadIdx.x] = col < N && y < K ? B[y * N + col] : 0.0f;
        __syncthreads();
        for (int k = 0; k < TILE_SIZE; ++k)
            sum += a[threadIdx.y][k] * b[k][threadIdx.x];
        __syncthreads();
    }
    if (row < M && col < N)
        C[row * N + col] = sum;
}

at::Tensor matmul(const at::Tensor& A, const at::Tensor& B)
{
    TORCH_CHECK(A.size(1) == B.size(0), "sizes do not match");
    at::cuda::CUDAGuard device_guard(A.device());
    auto M = A.size(0), K = A.size(1), N = B.size(1);
    auto options = torch::TensorOptions().dtype(torch::kFloat32).device(A.device());
    at::Tensor C = torch::zeros({M, N}, options);
    dim3 grid((N + TILE_SIZE - 1) / TILE_SIZE, (int)ceil((float)M / TILE_SIZE));
    cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    matmul_tiled<<<grid, BLOCK, 0, stream>>>(A.contiguous().data_ptr<float>(), B.contiguous().data_ptr<float>(), C.data_ptr<float>(),
                                             static_cast<int>(M), (int)N, K);
    cudaError_t err = cudaGetLastError();
    if (err != cudaSuccess) {
        throw std::runtime_error(cudaGetErrorString(err));
    }
    return C;
}
"""
SOFTMAX = r"""
#include <cfloat>
__global__ void softmax_rows(const float* in, float* out, int cols) {
    extern __shared__ float shared[];
    const float* x = in + blockIdx.x * cols;
    float* y = out + blockIdx.x * cols;
    float most = -FLT_MAX;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) most = fmaxf(most, x[i]);
    shared[threadIdx.x] = most;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + s]);
        __syncthreads();
    }
    most = shared[0];
    __syncthreads();
    float sum = 0.f;
    for (int i = threadIdx.x; i < cols; i += blockDim.x) sum += expf(x[i] - most);
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) shared[threadIdx.x] += shared[threadIdx.x + s];
        __syncthreads();
    }
    sum = shared[0];
    for (int i = threadIdx.x; i < cols; i += blockDim.x) y[i] = expf(x[i] - most) / sum;
}

torch::Tensor softmax(torch::Tensor x) {
    auto sizes = x.sizes();
    int threads = 1;
    while (threads < sizes[1] && threads < 256)
        threads *= 2;
    auto out = torch::empty(x.sizes(), x.options());
    size_t bytes = threads * sizeof(float);
    softmax_rows<<<x.size(0), threads, bytes>>>(x.data_ptr<float>(), out.data_ptr<float>(), (int)x.size(1));
    cudaDeviceSynchronize();
    return out;
}
"""
LEAKY = r"""
#include <torch/extension.h>
#include <vector>

template <typename scalar_t, int UNROLL>
__global__ void leaky_relu_kernel(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, float slope, size_t n)
{
    size_t begin = (size_t(blockIdx.x) * blockDim.x + threadIdx.x) * UNROLL;
    for (size_t i = begin; i < begin + UNROLL && i < n; i++)
        y[i] = x[i] > scalar_t(0) ? x[i] : scalar_t(slope) * x[i];
}

std::vector<torch::Tensor> leaky_relu_cuda(torch::Tensor x, double slope)
{
    auto y = torch::zeros_like(x);
    const int threads = 128;
    constexpr int unroll = 4;
    const int64_t blocks = (x.numel() + threads * unroll - 1) / (threads * unroll);
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "leaky_relu", ([&] {
        leaky_relu_kernel<scalar_t, 4><<<blocks, threads, sizeof(scalar_t)>>>(
            x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), static_cast<float>(slope), x.numel());
    }));
    return {y, x};
}
"""
LEAKY_CPP = r"""
#include <torch/extension.h>
std::vector<torch::Tensor> leaky_relu_cuda(torch::Tensor x, double slope);

#define CHECK_CONTIGUOUS(x) AT_ASSERTM(x.is_contiguous(), #x " must be contiguous")

std::vector<torch::Tensor> leaky_relu(torch::Tensor x, double slope = 0.125) {
  CHECK_CONTIGUOUS(x);
  return leaky_relu_cuda(x, slope);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("forward", &leaky_relu, "LeakyReLU forward (CUDA)", py::arg("x"), py::arg("slope") = 0.125);
}
"""
TOTAL = r"""
#define THREADS 64
#define DIVUP(a, b) (((a) + (b) - 1) / (b))
__global__ void partial_sums(const double* in, double* out, int n) {
    __shared__ double s[THREADS];
    int i = blockIdx.x * THREADS + threadIdx.x;
    s[threadIdx.x] = i < n ? in[i] : 0.0;
    __syncthreads();
    for (int k = THREADS / 2; k; k /= 2) {
        if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = s[0];
}
__global__ void times_kernel(double* x, double factor, bool twice) { x[0] *= twice ? 2 * factor : factor; }

torch::Tensor total(torch::Tensor x, double factor, bool twice) {
    torch::Tensor in = x.contiguous().view(-1);
    int n = in.numel();
    do {
        int blocks = DIVUP(n, THREADS);
        auto lambda = torch::empty({blocks}, torch::dtype(torch::kFloat64).device(x.device()));
        partial_sums<<<blocks, THREADS>>>(in.data_ptr<double>(), lambda.data_ptr<double>(), n);
        in = lambda;
        n = blocks;
    } while (0);
    while (n > 1) {
        int blocks = DIVUP(n, THREADS);
        auto next = torch::empty(blocks, in.options());
        partial_sums<<<blocks, THREADS>>>(in.data_ptr<double>(), next.data_ptr<double>(), n);
        std::swap(in, next);
        n = blocks;
    }
    for (int i = 0; i < 2; ++i)
        times_kernel<<<1, 1>>>(in.data_ptr<double>(), i == 0 ? factor : 1.0, twice && !i);
    if (factor > 1e6) {
        return in;
    } else {
        return in[0];
    }
}
"""


def _inputs(*shape: int, dtype: Any = None) -> Callable[[str], tuple[Any, ...]]:
    return lambda device: (torch.randn(shape, dtype=dtype, device=device),)


def _grey(x: Any) -> Any:
    return (0.2989 * x[0].float() + 0.5870 * x[1].float() + 0.1140 * x[2].float()).to(torch.uint8)


TUTORIALS = [] if torch is None else [
    Tutorial("vector_add", VECTOR_ADD, "torch::Tensor vector_add(torch::Tensor a, torch::Tensor b);", "vector_add",
             lambda device: (torch.randn(1000, device=device), torch.randn(1000, device=device)), torch.add),
    Tutorial("square_matrix_extension", SQUARE, "torch::Tensor square_matrix(torch::Tensor matrix);", "square_matrix", _inputs(37, 50),
             torch.square),
    Tutorial("grey", GREY, "torch::Tensor rgb_to_grayscale(torch::Tensor input);", "rgb_to_grayscale",
             lambda device: (torch.randint(0, 256, (3, 20, 37), dtype=torch.uint8, device=device),), _grey),
    Tutorial("matmul", MATMUL, "at::Tensor matmul(const at::Tensor& A, const at::Tensor& B);", "matmul",
             lambda device: (torch.randn(33, 40, device=device), torch.randn(25, 40, device=device).t()), torch.matmul),
    Tutorial("softmax", SOFTMAX, "", "softmax", _inputs(5, 100), lambda x: torch.softmax(x, 1)),
    Tutorial("leaky", LEAKY, LEAKY_CPP, "forward", _inputs(1000, dtype=torch.float64),
             lambda x: (torch.nn.functional.leaky_relu(x, 0.125), x)),
    Tutorial("total", TOTAL, "", "total", lambda device: (torch.randn(70, 80, dtype=torch.float64, device=device).t(), 0.5, True),
             lambda x, factor, twice: x.sum() * factor * (2 if twice else 1)),
]  # fmt: skip
