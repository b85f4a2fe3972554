"""The daemon in place of NVRTC and nvcc in this process: `kops.torch.compile_kernel` beside `torch.cuda._compile_kernel`,
`kops.RawKernel` and `kops.RawModule` beside CuPy's, and tutorials by `kops.load_inline`, on a GPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)
import kops  # noqa: E402
import kops.torch  # noqa: E402
import numpy  # noqa: E402
from kops._clients import inline as _inline  # noqa: E402
from support.tutorials import TUTORIALS  # noqa: E402

SOURCE = r"""
#include <cuda_fp16.h>
extern "C" __global__ void axpy(const float* x, const float* y, float* out, double a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a * x[i] + y[i];
}
template <typename T, int N> __global__ void scale(T* y, const T* x, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * T(float(N));
}
extern "C" __global__ void backwards(int* data, int n)
{
    extern __shared__ int shared[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) shared[i] = data[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) data[i] = shared[n - 1 - i];
}
extern "C" __global__ void slow(float* x, int n)
{
    float v = x[threadIdx.x];
    for (int i = 0; i < n; i++) v = v * 1.0000001f + 1e-7f;
    x[threadIdx.x] = v;
}
"""


@pytest.fixture(autouse=True)
def used(torch: Any, k: Any, daemon: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    kops.torch.use(k)
    monkeypatch.setenv("KOPS_SOCKET", str(daemon.socket_path))
    monkeypatch.setattr(_inline, "_default", None)
    yield
    kops.torch.use(None)


@pytest.fixture(params=["kops", "torch"])
def compile_kernel(request: pytest.FixtureRequest, torch: Any) -> Any:
    """Ours, and torch's own: the same program for both."""
    if request.param == "kops":
        return kops.torch.compile_kernel
    theirs = getattr(torch.cuda, "_compile_kernel", None)
    if theirs is None:
        pytest.skip("this torch has no torch.cuda._compile_kernel")
    try:
        theirs(SOURCE, "axpy")
    except Exception as error:
        pytest.skip(f"torch.cuda._compile_kernel does not work here: {error}")
    return theirs


def test_the_same_program(torch: Any, compile_kernel: Any) -> None:
    x, y = torch.randn(10_000, device="cuda"), torch.randn(10_000, device="cuda")
    out = torch.empty_like(x)
    axpy = compile_kernel(SOURCE, "axpy")
    axpy(grid=(40, 1, 1), block=(256, 1, 1), args=[x, y, out, 2.5, x.numel()])
    torch.testing.assert_close(out, 2.5 * x + y)
    axpy((1, 1, 1), (256, 1, 1), (x[100:], y, out, 0.0, 200))
    torch.testing.assert_close(out[:200], y[:200])


@pytest.mark.parametrize("dtype, name", [("float32", "float"), ("float64", "double"), ("int64", "long long")])
def test_templates(torch: Any, compile_kernel: Any, dtype: str, name: str) -> None:
    x = torch.arange(100, device="cuda").to(getattr(torch, dtype))
    y = torch.zeros_like(x)
    compile_kernel(SOURCE, f"scale<{name}, 3>")((1, 1, 1), (128, 1, 1), [y, x, 100])
    assert torch.equal(y, 3 * x)


def test_much_shared_memory(torch: Any, compile_kernel: Any) -> None:
    n = 20_000  # 80 000 bytes
    data = torch.arange(n, dtype=torch.int32, device="cuda")
    kernel = compile_kernel(SOURCE, "backwards")
    kernel.set_shared_memory_config(n * 4)
    kernel((1, 1, 1), (1024, 1, 1), [data, n], shared_mem=n * 4)
    assert torch.equal(data, torch.arange(n - 1, -1, -1, dtype=torch.int32, device="cuda"))


def test_strided_memory_is_the_kernel_s(torch: Any, compile_kernel: Any) -> None:
    x = torch.randn(64, 64, device="cuda")
    out = torch.zeros(64 * 64, device="cuda")
    kernel = compile_kernel(SOURCE, "axpy")
    kernel((16, 1, 1), (256, 1, 1), [x.t(), x.t(), out, 1.0, 64 * 64])
    torch.testing.assert_close(out, 2 * x.reshape(-1))
    one = torch.ones(1, device="cuda").expand(8)
    kernel((1, 1, 1), (1, 1, 1), [one, one, one, 1.0, 1])
    assert one.tolist() == [2.0] * 8


def test_order_on_streams(torch: Any, compile_kernel: Any) -> None:
    """Between torch's kernels, on the current stream and on the given one."""
    slow, axpy = compile_kernel(SOURCE, "slow"), compile_kernel(SOURCE, "axpy")
    side = torch.cuda.Stream()
    for given in (None, side):
        for turn in range(20):
            x = torch.full((256,), float(turn), device="cuda")
            out = torch.zeros_like(x)
            side.wait_stream(torch.cuda.current_stream())
            slow((1, 1, 1), (256, 1, 1), [torch.ones(256, device="cuda"), 100_000], stream=given)
            axpy((1, 1, 1), (256, 1, 1), [x, x, out, 1.0, 256], stream=given)
            with torch.cuda.stream(given or torch.cuda.current_stream()):
                x.zero_()  # the kernel has read it
                made = out + 1
            torch.cuda.current_stream().wait_stream(side)
            assert torch.equal(made, torch.full_like(made, 2.0 * turn + 1))
            for tensor in (x, out, made):
                tensor.record_stream(side)


def test_numbers_are_converted(torch: Any, k: Any) -> None:
    """Where torch's own would hand a double's bytes to a float."""
    source = 'extern "C" __global__ void set(float* y, float a, short b, bool c) { y[0] = c ? a + b : 0; }'
    y = torch.zeros(1, device="cuda")
    kernel = kops.torch.compile_kernel(source, "set")
    kernel(args=[y, 1.5, numpy.int64(-2), True])
    assert y.item() == -0.5
    with pytest.raises(kops.OutOfRange):
        kernel(args=[y, 1.5, 40_000, True])
    assert kernel.attributes.registers > 0


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip("cupy", reason="CuPy is not installed")


@pytest.mark.parametrize("mine", [True, False])
def test_raw_module_beside_cupy(k: Any, cupy: Any, mine: bool) -> None:
    options = ("-std=c++17", "--use_fast_math")
    kind: Any = kops.RawModule if mine else cupy.RawModule
    more = {"client": k} if mine else {}
    module = kind(code=SOURCE, options=options, name_expressions=["scale<float, 2>", "scale<int, 5>"], **more)
    x, y = cupy.random.rand(1000).astype("float32"), cupy.random.rand(1000).astype("float32")
    out = cupy.zeros_like(x)
    axpy = module.get_function("axpy")
    axpy((4,), (256,), (x, y, out, numpy.float64(2), numpy.int32(1000)))
    cupy.testing.assert_allclose(out, 2 * x + y, rtol=1e-6)
    axpy((4,), (256,), (x, y, out, 3.0, 1000))
    cupy.testing.assert_allclose(out, 3 * x + y, rtol=1e-6)
    module.get_function("scale<float, 2>")((4,), (256,), (out, x, 1000))
    cupy.testing.assert_array_equal(out, 2 * x)
    integers = cupy.arange(100, dtype="int32")
    module.get_function("scale<int, 5>")((1,), (128,), (integers, integers, 100))
    cupy.testing.assert_array_equal(integers, 5 * cupy.arange(100))
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.get_current_stream().synchronize()
    axpy((4,), (256,), (x, y, out, 1.0, 1000), stream=stream)
    stream.synchronize()
    cupy.testing.assert_allclose(out, x + y, rtol=1e-6)
    backwards = kops.RawKernel(SOURCE, "backwards", client=k) if mine else cupy.RawKernel(SOURCE, "backwards")
    backwards((1,), (32,), (integers, 100), shared_mem=400)
    cupy.testing.assert_array_equal(integers, 5 * cupy.arange(99, -1, -1))


def test_formulas_beside_cupy(k: Any, cupy: Any) -> None:
    x, y = cupy.random.rand(40, 50).astype("float32"), cupy.random.rand(40, 50).astype("float32")
    squared = kops.ElementwiseKernel("T x, T y", "T z", "z = (x - y) * (x - y)", "squared", client=k)
    cupy.testing.assert_allclose(squared(x, y), (x - y) ** 2, rtol=1e-6)
    out = cupy.empty_like(x)
    assert squared(x, y, out) is out
    cupy.testing.assert_allclose(out, (x - y) ** 2, rtol=1e-6)
    norm = kops.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm", client=k)
    cupy.testing.assert_allclose(norm(x, axis=1), cupy.linalg.norm(x, axis=1), rtol=1e-5)


def test_attributes_beside_cupy(k: Any, cupy: Any) -> None:
    for name in ("axpy", "backwards", "slow"):
        ours, theirs = kops.RawKernel(SOURCE, name, client=k), cupy.RawKernel(SOURCE, name)
        for attribute in ("shared_size_bytes", "local_size_bytes", "max_threads_per_block"):
            assert getattr(ours, attribute) == getattr(theirs, attribute), attribute
        assert ours.binary_version == theirs.binary_version or theirs.binary_version > ours.binary_version


def test_raw_kernel_on_torch_tensors(torch: Any, k: Any) -> None:
    axpy = kops.RawKernel(SOURCE, "axpy", client=k)
    x, out = torch.randn(1000, device="cuda"), torch.zeros(1000, device="cuda")
    axpy((4,), (256,), (x, x, out, 1, 1000))
    x.zero_()
    assert out.abs().sum() > 0, "ordered before what comes behind it on torch's stream"
    pairs = torch.randn(10, dtype=torch.complex64, device="cuda")
    axpy((1,), (32,), (pairs, pairs, out, 1, 20))
    torch.testing.assert_close(out[:20], 2 * torch.view_as_real(pairs).reshape(-1))
    array = numpy.arange(1000, dtype="float32")
    made = numpy.zeros(1000, "float32")
    axpy((4,), (256,), (array, array, made, 0.5, 1000))
    assert numpy.allclose(made, 1.5 * array)


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=[tutorial.name for tutorial in TUTORIALS])
def test_tutorials_run_as_they_are(torch: Any, tutorial: Any) -> None:
    functions = None if "PYBIND11_MODULE" in tutorial.cpp else [tutorial.function]
    module = kops.load_inline(tutorial.name, tutorial.cpp, tutorial.cuda, functions)
    inputs = tutorial.inputs("cuda")
    torch.testing.assert_close(getattr(module, tutorial.function)(*inputs), tutorial.expected(*inputs), atol=1e-4, rtol=1e-4)
    kops.default_client().close()


LIBRARY = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
__global__ void plus_one_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1;
}
torch::Tensor plus_one(const torch::Tensor& x) {
    auto y = torch::empty_like(x);
    plus_one_kernel<<<(x.numel() + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
std::vector<torch::Tensor> rows(torch::Tensor x) { return x.unbind(0); }
TORCH_LIBRARY(kops_gpu, m) { m.def("plus_one(Tensor x) -> Tensor"); m.def("rows", &rows); }
TORCH_LIBRARY_IMPL(kops_gpu, CUDA, m) { m.impl("plus_one", &plus_one); }
"""


def test_functions_of_a_library_are_torchs_ops(torch: Any) -> None:
    kops.load_inline("library", cuda_sources=LIBRARY, is_python_module=False)
    x = torch.randn(1000, device="cuda")
    torch.testing.assert_close(torch.ops.kops_gpu.plus_one(x), x + 1)
    torch.testing.assert_close(torch.stack(torch.ops.kops_gpu.rows(x.view(100, 10))), x.view(100, 10))
    with pytest.raises(NotImplementedError, match="'CPU' backend"):
        torch.ops.kops_gpu.plus_one(x.cpu())
    kops.default_client().close()


MANY = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>
struct Pair { double a; int b; };
template <typename T> __global__ void mix(
    const T* x, T* y, int n, double a, int64_t back, bool twice, Pair pair, short s, const float* none) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = T(float((float(x[i - back]) * a + pair.a * pair.b + s + (none ? 1 : 0)) * (twice ? 2 : 1)));
}
torch::Tensor mixed(torch::Tensor x, double a, bool twice, int64_t start) {
    TORCH_CHECK(x.is_contiguous(), "contiguous");
    auto y = torch::empty_like(x);
    const int n = x.numel() - start;
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "mixed", [&] {
        mix<scalar_t><<<(n + 127) / 128, 128>>>(
            x.data_ptr<scalar_t>() + 2 * start, y.data_ptr<scalar_t>() + start, n, a, start, twice, Pair{0.5, 3}, -2, nullptr);
    });
    y.narrow(0, 0, start).zero_();
    return y;
}
__global__ void reversed(const float* x, float* y, int n) {
    extern __shared__ float block[];
    block[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = block[n - 1 - threadIdx.x];
}
torch::Tensor backwards(torch::Tensor x, int64_t blocks) {
    const at::cuda::OptionalCUDAGuard guard(device_of(x));
    auto y = torch::empty({x.size(0)}, x.options());
    reversed<<<blocks, x.size(0), x.size(0) * sizeof(float), at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), x.size(0));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
torch::Tensor past(torch::Tensor x) {
    auto y = torch::empty({4}, x.options());
    reversed<<<1, 4, 16>>>(x.data_ptr<float>() + 1000000, y.data_ptr<float>(), 4);
    return y;
}
"""


def test_launches_of_an_extension_are_right_however_often_they_are_made(torch: Any) -> None:
    """Only the first launch of a kernel goes by Python."""
    module = kops.load_inline("many", cuda_sources=MANY, functions=["mixed", "backwards", "past"])
    for i in range(40):
        dtype = (torch.float32, torch.float64, torch.float16, torch.bfloat16)[i % 4]
        n, start, a, twice = 100 + 37 * i, i % 3, 0.25 * i - 1, i % 5 == 0
        x = torch.randn(n, device="cuda").to(dtype)
        made = module.mixed(x, a, twice, start)
        expected = torch.zeros(n, dtype=torch.float64, device="cuda")
        expected[start:] = (x.double()[start:] * a + 1.5 - 2) * (1 + twice)
        torch.testing.assert_close(made.double(), expected, **({"atol": 1e-5, "rtol": 1e-5} if i % 4 < 2 else {"atol": 0.2, "rtol": 2e-2}))
    stream = torch.cuda.Stream()
    for i in range(20):
        x = torch.randn(32 * (1 + i % 4), device="cuda", requires_grad=i % 2 == 0)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream if i % 3 else torch.cuda.default_stream()):
            torch.testing.assert_close(module.backwards(x, 1), x.flip(0), rtol=0, atol=0)


def test_a_launch_that_cannot_be_is_refused_after_others_too(torch: Any) -> None:
    module = kops.load_inline("many", cuda_sources=MANY, functions=["mixed", "backwards", "past"])
    x = torch.randn(64, device="cuda")
    for _ in range(3):
        torch.testing.assert_close(module.backwards(x, 1), x.flip(0))
        with pytest.raises(RuntimeError, match="invalid configuration"):
            module.backwards(x, 0)
        with pytest.raises(kops.BadArgument, match="in no tensor"):
            module.past(x)
        with pytest.raises(kops.BadArgument, match="memory of the CPU"):
            module.mixed(x.cpu(), 1, False, 0)
    torch.testing.assert_close(module.backwards(x, 1), x.flip(0))


def test_the_environment_interprets_on_the_cpu_alone(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOPS_INTERPRET", "1")
    tutorial = TUTORIALS[0]
    module = kops.load_inline(tutorial.name, tutorial.cpp, tutorial.cuda, [tutorial.function])
    for device in ("cpu", "cuda"):
        inputs = tutorial.inputs(device)
        torch.testing.assert_close(getattr(module, tutorial.function)(*inputs), tutorial.expected(*inputs))
    kops.default_client().close()
