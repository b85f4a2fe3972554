"""Functions of the host as C++ compiles them: what they compute, what their kernels are given, and their errors. NumPy's arrays are the
tensors, and kernels run in the interpreter."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import math
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kops
import pytest
from which import compiled_only

numpy = pytest.importorskip("numpy")
pytestmark = [
    compiled_only,
    pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="there is no C++ compiler"),
]

ROOT = Path(__file__).resolve().parents[2]
HEAD = """#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
"""
SQUARE = """
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
PUT = """
__global__ void put(float* p, float value, int at) { p[at] = value; }
"""


def loaded(source: str, functions: Any = None, cpp: str = "", **how: Any) -> Any:
    return kops.load_inline("test", cpp, HEAD + source, functions, fallback="interpret", **how)


def floats(*values: float) -> Any:
    return numpy.array(values, "float32")


def test_a_tutorial_as_it_is() -> None:
    mod = kops.load_inline(
        name="tutorial", cpp_sources="torch::Tensor square_matrix(torch::Tensor matrix);", cuda_sources=SQUARE, functions=["square_matrix"],
        with_cuda=True, extra_cuda_cflags=["-O2"], build_directory="./load_inline_cuda", fallback="interpret",
    )  # fmt: skip
    x = numpy.arange(60, dtype="float32").reshape(20, 3)
    y = mod.square_matrix(x)
    assert y is not x and (y == x * x).all() and y.dtype == x.dtype
    assert (mod.square_matrix(x[:4]) == x[:4] ** 2).all()
    assert "square_matrix" in dir(mod) and repr(mod.square_matrix) == "<kops.extension.Function square_matrix>"
    with pytest.raises(AttributeError, match="it has square_matrix"):
        mod.nothing  # noqa: B018


SEMANTICS = PUT + """
std::vector<int64_t> numbers(int n) {
    int k = 1, a = (1 - n) / 4, b = (1 - n) % 4;
    if (n > 3) { int k = 7; k += 1; }
    int m = n; m *= 0.55;
    unsigned u = 3u - n;
    int whole = 2.9;
    int sum = 0;
    for (int n = 0; n < 3; n++) sum += n;
    return {k, a, b, m, (int64_t)u, whole, sum, n, 1 << 4, n > 3 ? -n : n};
}
static int twice(int& n) { n *= 2; return n; }
static void fill(torch::Tensor& t, float value) { t = torch::full({2}, value); }
int counted() { static int calls = 0; return ++calls; }
int64_t references(int n) { twice(n); return n; }
torch::Tensor filled(torch::Tensor x) { fill(x, 3); return x; }
int control(int n) {
    int made = 0;
    switch (n) { case 1: made = 10; break; case 2: made = 20; default: made += 1; }
    do { made++; n--; } while (n > 0);
    for (auto one : std::vector<int>{1, 2, 3}) made += one;
    auto add = [&](int by) { made += by; };
    add(100);
    auto [first, second] = std::make_pair(1000, 2000);
    made <<= 1;
    return made + first + second;
}
__host__ __device__ constexpr int cdiv(int a, int b) { return (a + b - 1) / b; }
template <typename T> T largest(T a, T b) { return a > b ? a : b; }
double helpers(int n) { return cdiv(n, 4) + largest(1.5, 2.5) + (std::isinf(INFINITY) ? 100 : 0); }
void pointers(torch::Tensor x) {
    float* p = x.data_ptr<float>();
    for (int i = 0; i < 3; i++) { put<<<1, 1>>>(p, 4.0f, 0); p += 2; }
    p--;
    put<<<1, 1>>>(p, 5.0f, 2);
    put<<<1, 1>>>(x.data_ptr<float>() + x.numel() - 1, 6.0f, 0);
}
void thrown(int n) {
    if (n == 1) throw std::runtime_error("thrown as it is");
    if (n == 2) throw std::out_of_range("far");
    TORCH_CHECK(n != 3, "n is ", n, " and ", 2.5);
    TORCH_CHECK(n != 4);
}
std::string text(std::string s, bool upper) { return upper ? s + "!" : s; }
std::tuple<torch::Tensor, int64_t> pair(torch::Tensor x) { return {x, x.dim()}; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("numbers", &numbers); m.def("counted", &counted); m.def("references", &references); m.def("filled", &filled);
    m.def("control", &control); m.def("helpers", &helpers); m.def("pointers", &pointers); m.def("thrown", &thrown);
    m.def("text", &text, "What it says.", py::arg("s") = "hello", py::arg("upper") = true); m.def("pair", &pair);
}
"""


@pytest.fixture(scope="module")
def semantics() -> Any:
    return loaded(SEMANTICS)


def test_numbers_are_those_of_cxx(semantics: Any) -> None:
    assert list(semantics.numbers(10)) == [1, -2, -1, 5, 2**32 - 7, 2, 3, 10, 16, -10]
    assert [semantics.counted(), semantics.counted()] == [1, 2]
    assert semantics.references(21) == 42
    assert (semantics.filled(floats(1, 1)) == 3).all()
    assert [semantics.control(n) for n in (1, 2, 3)] == [2 * 117 + 3000, 2 * 129 + 3000, 2 * 110 + 3000]
    assert semantics.helpers(10) == 3 + 2.5 + 100


def test_pointers_move(semantics: Any) -> None:
    x = numpy.zeros(9, "float32")
    semantics.pointers(x)
    assert x.tolist() == [4, 0, 4, 0, 4, 0, 0, 5, 6]
    part = numpy.zeros(20, "float32")[10:19]
    semantics.pointers(part)
    assert part.tolist() == x.tolist() and not part.base[:10].any() and not part.base[19:].any()


def test_exceptions_are_pythons(semantics: Any) -> None:
    for n, message in ((1, "thrown as it is"), (2, "far"), (3, r"n is 3 and 2\.5"), (4, "n != 4")):
        with pytest.raises((RuntimeError, IndexError), match=message):
            semantics.thrown(n)
    semantics.thrown(0)


def test_arguments(semantics: Any) -> None:
    assert semantics.text() == "hello!" and semantics.text("a", False) == "a" and semantics.text(upper=False) == "hello"
    assert semantics.text.__doc__ == "What it says."
    x = floats(1, 2)
    made = semantics.pair(x)
    assert type(made) is tuple and made[0] is x and made[1] == 1
    for arguments, named in (((1,), {}), (("a", True, 1), {}), ((), {"nothing": 1}), (("a", "b"), {})):
        with pytest.raises(TypeError, match=r"text\("):
            semantics.text(*arguments, **named)
    with pytest.raises(TypeError, match="takes tensors"):
        semantics.text(object())
    assert list(semantics.numbers(numpy.int64(10)))[:2] == [1, -2]


def test_values_of_python() -> None:
    mod = loaded("""
std::string numbers(double x, bool flag) { return c10::str(x, " ", flag); }
int64_t whole(int64_t n) { return n; }
std::string lists(std::vector<std::string> names, std::vector<std::vector<int64_t>> lists, std::tuple<int, double> pair) {
    return c10::str(names, "|", lists[1], "|", std::get<1>(pair));
}
int64_t given(std::vector<c10::optional<torch::Tensor>> list) { return list[0].has_value() + 2 * list[1].has_value(); }
torch::ScalarType kind(torch::Tensor x) { return x.scalar_type(); }
torch::IntArrayRef sizes(torch::Tensor x) { return x.sizes(); }
std::vector<bool> bools() { return {true, false}; }
uint64_t largest() { return UINT64_MAX; }
int64_t bytes(torch::Tensor x) { return x.storage().nbytes() + x.storage_offset(); }
""", ["numbers", "whole", "lists", "given", "kind", "sizes", "bools", "largest", "bytes"])  # fmt: skip
    assert mod.numbers(2**64, 1) == "1.84467e+19 1" and mod.numbers(True, None) == "1 0"
    assert mod.numbers(numpy.array([2.5], "float32"), numpy.array(0)) == "2.5 0" and mod.whole(numpy.array(7)) == 7
    for wrong in (2**63, 1.5, floats(1, 2), None):
        with pytest.raises(TypeError):
            mod.whole(wrong)
    assert mod.lists(["a", "b"], [[1], range(2)], (1, numpy.float64(2.5))) == "a b|0 1|2.5"
    assert mod.given([floats(1), None]) == 1 and mod.kind(floats(1)) == numpy.float32
    assert mod.sizes(floats(1, 2)) == (2,) and mod.bools() == [True, False] and mod.bytes(floats(1, 2, 3)[1:]) == 13
    assert mod.largest() == 2**64 - 1
    with pytest.raises(TypeError):
        mod.kind(None)


def test_overloads_are_tried_without_conversions_first() -> None:
    mod = loaded("""
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("kind", [](std::vector<double> list, double x) { return "double"; });
    m.def("kind", [](std::vector<double> list, bool x) { return "bool"; });
    m.def("kind", [](std::vector<double> list, int64_t x) { return "int"; });
    m.def("kind", [](torch::Tensor x, int64_t n) { return "tensor"; });
}
""")  # fmt: skip
    x = floats(1, 2)
    assert [mod.kind([1.5], value) for value in (2, 2.5, True)] == ["int", "double", "bool"] and mod.kind(x, 2) == "tensor"
    with pytest.raises(TypeError, match="does not match .*nor .*nor .*nor "):
        mod.kind(x, "a")


def test_no_tensor_is_kept() -> None:
    mod = loaded("""
void two(torch::Tensor x, int n) { TORCH_CHECK(n, "no"); }
bool same(torch::Tensor x, std::vector<torch::Tensor> list) { return x.is_same(list[0]); }
torch::ScalarType kind(torch::ScalarType t) { return t; }
""", ["two", "kind", "same"])  # fmt: skip
    x = floats(1)
    before = sys.getrefcount(x)
    for arguments in ((x, 1), (x, 0), (x, "a"), (x, object())):
        with contextlib.suppress(TypeError, RuntimeError):
            mod.two(*arguments)
    del arguments
    assert mod.same(x, [x]) and not mod.same(x, [floats(1)])
    gc.collect()
    assert sys.getrefcount(x) == before
    assert [mod.kind(kind) for kind in (numpy.uint8, numpy.dtype("float32"))] == ["uint8", "float32"]


ARGUMENTS = """
int64_t i64(int64_t x) { return x; }
uint64_t u64(uint64_t x) { return x; }
double f64(double x) { return x; }
bool b(bool x) { return x; }
std::string over_b(bool x) { return "bool"; }
std::string over_f(double x) { return "double"; }
std::string over_i(int64_t x) { return "int"; }
std::string given(std::vector<c10::optional<torch::Tensor>> x) {
    std::string s;
    for (auto& o : x) s += o.has_value() ? "1" : "0";
    return s;
}
int64_t defined(torch::Tensor x) { return x.defined(); }
int64_t whole(std::vector<int64_t> x) { int64_t sum = 0; for (auto v : x) sum += v; return sum; }
int64_t bits(std::vector<bool> x) { int64_t made = 0; for (auto v : x) made = made * 10 + v; return made; }
double mixed(std::tuple<int64_t, double> x, std::pair<int, std::string> y) { return std::get<0>(x) + std::get<1>(x) + y.first; }
size_t texts(std::vector<std::string> x) { return x.size(); }
std::vector<bool> flags() { return {true, false}; }
int body(int n) { throw py::type_error("the body's own"); }
int other(double n) { return 2; }
void thrown(int n) {
    switch (n) {
    case 0: throw std::domain_error("x"); case 1: throw std::range_error("x"); case 2: throw std::overflow_error("x");
    case 3: throw std::bad_alloc(); case 4: throw py::key_error("x"); case 5: TORCH_CHECK_TYPE(false, "x");
    }
}
std::string both(torch::Tensor a, torch::Tensor b) {
    auto c = a.contiguous();
    c.resize_({1, a.numel()});
    return c10::str(a.sizes(), b.sizes(), a.is_same(b), c.is_same(a));
}
torch::Tensor kept(torch::Tensor x, bool first) { static torch::Tensor k; if (first) k = x; return k.is_same(x) ? k : torch::Tensor(); }
double element(torch::Tensor x) { auto a = x.accessor<float, 2>(); return a[1][2]; }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("i64", &i64); m.def("u64", &u64); m.def("f64", &f64); m.def("b", &b); m.def("given", &given); m.def("defined", &defined);
    m.def("over", &over_b); m.def("over", &over_f); m.def("over", &over_i); m.def("whole", &whole); m.def("bits", &bits);
    m.def("mixed", &mixed); m.def("texts", &texts); m.def("flags", &flags); m.def("body", &body); m.def("body", &other);
    m.def("thrown", &thrown); m.def("both", &both); m.def("kept", &kept); m.def("element", &element);
}
"""


@pytest.fixture(scope="module")
def arguments() -> Any:
    return loaded(ARGUMENTS)


def test_numbers_are_converted_as_by_pybind11(arguments: Any) -> None:
    """A number is right or refused, and never cut; conversions come after exact matches. Each was held against torch's own load_inline."""
    assert [arguments.f64(x) for x in (2**64, True, numpy.array(2.5))] == [2.0**64, 1, 2.5]
    assert arguments.u64(2**63 + 5) == 2**63 + 5 and arguments.i64(numpy.array([3])) == 3
    assert [arguments.b(x) for x in (1, 0.5, None, numpy.array(True))] == [True, True, False, True]
    assert [arguments.over(x) for x in (True, 1.5, 1)] == ["bool", "double", "int"]
    for function, wrong in (("i64", 2**64 + 5), ("i64", 2**63), ("u64", -1), ("i64", 1.0), ("b", "x"), ("defined", None), ("f64", "1")):
        with pytest.raises(TypeError, match=f"does not match {function}"):
            getattr(arguments, function)(wrong)


def test_lists_are_converted_as_by_pybind11(arguments: Any) -> None:
    x = floats(1)
    assert arguments.given([x, None, x]) == "101" and arguments.given([None, None]) == "00" and arguments.given([]) == ""
    assert arguments.whole([numpy.int64(1), 2, True]) == 4 and arguments.bits([True, False]) == arguments.bits([1, 0]) == 10
    assert arguments.mixed((1, 2.5), [3, "a"]) == arguments.mixed([1, 2.5], (3, "a")) == 6.5
    assert arguments.texts(["a", "b"]) == 2 and arguments.flags() == [True, False] and type(arguments.flags()[0]) is bool
    for wrong in ([2**64 + 1], [1, 2.5], "ab", 1):
        with pytest.raises(TypeError, match="does not match whole"):
            arguments.whole(wrong)


def test_a_list_that_has_itself(arguments: Any) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(RecursionError):
        arguments.whole(endless)


def test_an_exception_is_no_wrong_argument(arguments: Any) -> None:
    """A TypeError of the function's body is the caller's, and no reason to run the next function of the name."""
    with pytest.raises(TypeError, match=r"^the body's own$"):
        arguments.body(1)
    assert arguments.body(1.0) == 2
    for n, kind in enumerate((ValueError, ValueError, OverflowError, MemoryError, KeyError, TypeError)):
        with pytest.raises(kind):
            arguments.thrown(n)


def test_copies_of_a_tensor_are_one(arguments: Any) -> None:
    with contextlib.suppress(kops.Unsupported):  # NumPy's arrays cannot be resized
        assert arguments.both(*[floats(1, 2)] * 2) == "[1, 2][1, 2]11"
    x = floats(1, 2)
    before = sys.getrefcount(x)
    assert arguments.kept(x, True) is x and arguments.kept(x, False) is x and arguments.kept(floats(1), False) is None
    arguments.kept(floats(1), True)
    assert sys.getrefcount(x) == before
    assert arguments.element(numpy.arange(6, dtype="float32").reshape(2, 3)) == 5


def test_calls_of_other_threads() -> None:
    """A call ends while another one has the pointer of a tensor that it has released."""
    mod = loaded("""
#include <unistd.h>
__global__ void put(float* p) { p[0] = 1; }
void slow(torch::Tensor x) {
    float* p = x.clone().data_ptr<float>();
    py::gil_scoped_release others;
    float* q = x.clone().data_ptr<float>();
    usleep(400000);
    put<<<1, 1>>>(p);
    put<<<1, 1>>>(q);
}
void quick(torch::Tensor x) { x.clone(); }
""", ["slow", "quick"])  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(mod.slow, floats(1))
        while not running.done():
            mod.quick(floats(1))
        running.result()


def test_a_copy_for_the_cpu_is_the_tensor_itself() -> None:
    mod = loaded(PUT + """
bool copied(torch::Tensor x) {
    auto c = x.cpu(), g = x.cuda();
    put<<<1, 1>>>(x.data_ptr<float>(), 2, 0);
    return c.is_cpu() && g.is_cuda() && x.is_cuda() && c.cuda().is_cuda();
}
""", ["copied"])  # fmt: skip
    x = floats(0)
    assert mod.copied(x) and x == 2


def test_cxx_gives_up_the_interpreter_s_lock_and_takes_it_again() -> None:
    mod = loaded("""
#include <poll.h>
#include <unistd.h>
int64_t waited(torch::Tensor x, int fd, int began) {
    py::gil_scoped_release others;
    pollfd wanted{fd, POLLIN, 0};
    if (write(began, "x", 1) != 1) return -2;
    if (poll(&wanted, 1, 30000) != 1) return -1;
    auto y = torch::ones_like(x);  // takes the lock while it computes
    pybind11::gil_scoped_acquire again;
    return y.sum().item<int64_t>();
}
""", ["waited"])  # fmt: skip
    ours, theirs = os.pipe()
    told, telling = os.pipe()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(mod.waited, floats(0, 0, 0), ours, telling)
        os.read(told, 1)  # from here on this thread needs the lock
        os.write(theirs, b"x")
        assert running.result() == 3
    for fd in (ours, theirs, told, telling):
        os.close(fd)


class Yielding(numpy.ndarray):  # type: ignore[misc, name-defined]
    def view(self, *given: Any) -> Any:
        time.sleep(0.1)  # other threads run
        return super().view(*given)


def test_a_call_may_have_a_mutex() -> None:
    mod = loaded("""
#include <mutex>
#include <chrono>
void guarded(torch::Tensor x) {
    static std::timed_mutex mutex;
    TORCH_CHECK(mutex.try_lock_for(std::chrono::seconds(5)));
    std::lock_guard<std::timed_mutex> guard(mutex, std::adopt_lock);
    x.detach();
}
""", ["guarded"])  # fmt: skip
    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(mod.guarded, floats(0).view(Yielding)) for _ in range(2)]:
            one.result()


def test_threads_of_cxx_copy_and_drop_tensors() -> None:
    mod = loaded("""
#include <thread>
torch::Tensor last(torch::Tensor x) {
    std::vector<torch::Tensor> kept;
    for (int i = 0; i < 100; i++) kept.push_back(x.clone());
    auto dropped = std::move(kept);
    std::thread([&] { auto copy = dropped; dropped.clear(); kept.push_back(copy.back()); copy.clear(); }).join();
    return kept.back();
}
""", ["last"])  # fmt: skip
    x = floats(1, 2)
    before = sys.getrefcount(x)
    for _ in range(20):
        assert list(mod.last(x)) == [1, 2]
    assert sys.getrefcount(x) == before


def test_a_thread_of_cxx_has_its_errors() -> None:
    """What a thread that C++ has started asks for cannot be, and is no launch that does nothing."""
    mod = loaded(PUT + """
#include <thread>
std::string g(torch::Tensor x) {
    std::string why = "nothing";
    std::thread([&] {
        try { put<<<1, 1>>>(x.data_ptr<float>(), 1, 0); } catch (const std::exception& error) { why = error.what(); }
    }).join();
    return why;
}
""", ["g"])  # fmt: skip
    assert "a thread that C++ has started" in mod.g(floats(0))


def test_macros_with_names_of_ours() -> None:
    mod = loaded(PUT + """
#define launch(kernel) kernel<<<1, 1>>>(p, 2, 0)
#define stub wrong
#define entry wrong
#define name_of wrong
template <typename T> __global__ void add(T* p) { p[0] += 1; }
void g(torch::Tensor x) { float* p = x.data_ptr<float>(); launch(put); add<<<1, 1>>>(p); }
""", ["g"])  # fmt: skip
    x = floats(0)
    mod.g(x)
    assert x.tolist() == [3]


TYPES = """
#define BIND(nm) torch::Tensor nm(torch::Tensor x) { sq<<<1, x.numel()>>>(x.data_ptr<float>()); return x; }
__global__ void sq(float* x) { x[threadIdx.x] *= x[threadIdx.x]; }
BIND(f)
struct Pair { float a; int b; };
namespace inner { template <int B, typename scalar_t> __global__ void fill(scalar_t* y, Pair p, int n = B) {
    if (threadIdx.x < B) y[threadIdx.x] = scalar_t(p.a * p.b + n);
} }
namespace { template <typename T> __global__ void hidden(T* y, const T* maybe) { y[0] = maybe ? T(2) : T(1); } }
template <typename T> __global__ void special(T* y) { y[0] = T(1); }
template <> __global__ void special<double>(double* y) { y[0] = 2; }
enum class Mode { one, two };
template <Mode M, bool B> __global__ void chosen(int* y) { y[0] = int(M) * 10 + B; }
template <typename T> static __device__ T twice(T x) { return x + x; }
template <typename T> __global__ void doubled(T* y) { y[0] = twice(y[0]); }
torch::Tensor filled(torch::Tensor x) {
    constexpr int B = 3;
    AT_DISPATCH_FLOATING_TYPES_AND2(at::ScalarType::Half, at::ScalarType::BFloat16, x.scalar_type(), "filled", [&] {
        inner::fill<B><<<1, 32>>>(x.data_ptr<scalar_t>(), Pair{1.5f, 2});
    });
    cudaError_t err = cudaGetLastError();
    TORCH_CHECK(err == cudaSuccess, "bad");
    return x;
}
void forms(torch::Tensor x, torch::Tensor d, torch::Tensor i) {
    hidden<<<1, 1>>>(x.data_ptr<float>(), (const float*)nullptr);
    hidden<<<1, 1>>>(x.data_ptr<float>() + 1, x.data_ptr<float>());
    special<<<1, 1>>>(x.data_ptr<float>() + 2);
    special<<<1, 1>>>(d.data_ptr<double>());
    chosen<Mode::two, true><<<1, 1>>>(i.data_ptr<int>());
    doubled<<<1, 1>>>(d.data_ptr<double>());
    auto k = doubled<float>;
    k<<<1, 1>>>(x.data_ptr<float>());
}
torch::Tensor scratch(torch::Tensor x) {
    float *d, sum = 0;
    cudaMalloc(&d, x.numel() * sizeof(float));
    cudaMemset(d, 0, x.numel() * sizeof(float));
    cudaMemcpy(d, x.data_ptr<float>(), 2 * sizeof(float), cudaMemcpyDeviceToDevice);
    doubled<<<1, 1>>>(d);
    float host[2];
    cudaMemcpy(host, d, sizeof(host), cudaMemcpyDeviceToHost);
    cudaFree(d);
    sum = host[0] + host[1];
    return torch::full({1}, sum);
}
int invalid(torch::Tensor x, int blocks, int threads) {
    sq<<<blocks, threads>>>(x.data_ptr<float>());
    int first = cudaGetLastError();
    return first * 1000 + cudaGetLastError();
}
void unlooked(torch::Tensor x) { cudaMemcpy(x.data_ptr(), x.data_ptr(), 9, cudaMemcpyDefault); }
void on_host(torch::Tensor x) { sq<<<1, 1>>>(torch::zeros({4}).data_ptr<float>()); }
void stray(torch::Tensor x) { sq<<<1, 1>>>((float*)64); }
void behind(torch::Tensor x) { sq<<<1, 1>>>(x.data_ptr<float>() + x.numel()); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("f", &f); m.def("filled", &filled); m.def("forms", &forms); m.def("scratch", &scratch);
    m.def("invalid", &invalid); m.def("unlooked", &unlooked);
    m.def("on_host", &on_host); m.def("stray", &stray); m.def("behind", &behind);
}
"""


@pytest.fixture(scope="module")
def types() -> Any:
    return loaded(TYPES)


def test_a_macro_makes_a_function(types: Any) -> None:
    assert types.f(floats(2, 3)).tolist() == [4, 9]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_dispatch_names_the_instantiation(types: Any, dtype: str) -> None:
    assert types.filled(numpy.zeros(4, dtype)).tolist() == [6, 6, 6, 0]
    with pytest.raises(RuntimeError, match="not implemented for 'Int'"):
        types.filled(numpy.zeros(4, "int32"))


def test_a_pointer_may_step_back() -> None:
    mod = loaded("""
__global__ void around(const float* p, float* y, int back) { y[threadIdx.x] = p[(int)threadIdx.x - back] + p[threadIdx.x + 1]; }
__global__ void rounded(float* y, float x) { y[0] = __half2float(__float2half(x)); }
void g(torch::Tensor x, torch::Tensor y, int back) { around<<<1, 2>>>(x.data_ptr<float>() + 1, y.data_ptr<float>(), back); }
void h(torch::Tensor y) { rounded<<<1, 1>>>(y.data_ptr<float>(), 2049.0f); }
""", ["g", "h"])  # fmt: skip
    y = floats(0, 0)
    mod.g(floats(1, 2, 3, 4), y, 1)
    assert y.tolist() == [4, 6]
    with pytest.raises(kops.interpret.InterpretError, match=r"read of p\[-2\]"):
        mod.g(floats(1, 2, 3, 4), y, 2)
    mod.h(y)
    assert y[0] == 2048, "torch's headers bring cuda_fp16.h"


def test_a_pointer_that_is_not_aligned() -> None:
    mod = loaded("""
__global__ void four(const float4* a, float* y) { float4 v = a[0]; y[0] = v.x + v.w; }
void g(torch::Tensor x, torch::Tensor y, int at) {
    four<<<1, 1>>>(reinterpret_cast<const float4*>(x.data_ptr<float>() + at), y.data_ptr<float>());
}
""", ["g"])  # fmt: skip
    y = floats(0)
    mod.g(floats(*range(12)), y, 4)
    assert y.tolist() == [4 + 7]
    with pytest.raises(kops.interpret.InterpretError, match=r"misaligned|not aligned|16"):
        mod.g(floats(*range(12)), y, 1)


def test_half_is_torchs() -> None:
    """Kernels of a dispatch compute with torch's Half, which takes numbers of all kinds."""
    mod = loaded("""
template <typename T> struct Name { static const int value = 1; };
template <> struct Name<at::Half> { static const int value = 2; };
template <typename scalar_t> __global__ void all(const scalar_t* __restrict__ a, scalar_t* y, float* f) {
    __shared__ scalar_t s[2];
    s[0] = a[0];
    scalar_t x = s[0], zero = scalar_t(0), sum(0);
    y[0] = x * 2 + 1;
    y[1] = x > 0 && x >= zero && x != zero ? x / scalar_t(2) : zero;
    f[0] = x * 0.1f;
    f[1] = exp(x) + static_cast<float>(-x) + fmaxf(x, 0.f);
    for (int i = 0; i < 3; i++) sum += x;
    sum -= 1.5f;
    y[2] = sum;
    f[2] = Name<scalar_t>::value;
    f[2] += x;
}
void g(torch::Tensor a, torch::Tensor y, torch::Tensor f) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::ScalarType::Half, at::ScalarType::BFloat16, a.scalar_type(), "g", [&] {
        all<scalar_t><<<1, 1>>>(a.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), f.data_ptr<float>());
    });
}
""", ["g"])  # fmt: skip
    for dtype in ("float16", "float32"):
        y, f, a = numpy.zeros(3, dtype), floats(0, 0, 0), numpy.array([1.1], dtype)
        mod.g(a, y, f)
        x, one = float(a[0]), numpy.dtype(dtype).type
        assert y.tolist() == [one(one(x * 2) + 1), one(x / 2), one(one(one(x + x) + a[0]) - one(1.5))]
        assert numpy.allclose(f, [x * 0.1, math.exp(x) - x + x, (2 if dtype == "float16" else 1) + x], atol=1e-6)


def test_forms_of_kernels(types: Any) -> None:
    x, d, i = numpy.zeros(4, "float32"), numpy.zeros(1), numpy.zeros(1, "int32")
    types.forms(x, d, i)
    assert x.tolist() == [2, 2, 1, 0] and d.tolist() == [4] and i.tolist() == [11]


def test_memory_of_the_runtime(types: Any) -> None:
    assert types.scratch(floats(3, 4, 5)).tolist() == [10]


def test_wrong_launches(types: Any) -> None:
    x = floats(2, 3)
    assert types.invalid(x, 0, 1) == 9000 and types.invalid(x, 1, 2000) == 9000 and x.tolist() == [2, 3]
    assert types.invalid(x, 1, 1) == 0 and x.tolist() == [4, 3]
    with pytest.raises(RuntimeError, match=r"invalid configuration argument: sq with a grid of \(1, 1, 1\) and blocks of \(0, "):
        types.f(floats())
    with pytest.raises(RuntimeError, match=r"CUDA error: invalid argument: cudaMemcpy\(\)"):
        types.unlooked(x)
    with pytest.raises(kops.BadArgument, match=r"argument 1 \(float ?\*\) is 0x40, which is in no tensor"):
        types.stray(x)
    with pytest.raises(kops.BadArgument, match="points into a tensor in the memory of the CPU"):
        types.on_host(x)
    with pytest.raises(kops.interpret.InterpretError):
        types.behind(x)
    with pytest.raises(RuntimeError, match="expected scalar type Float but found Double"):
        types.f(numpy.zeros(2))


def test_functions_of_torch() -> None:
    mod = loaded("""
torch::Tensor many(torch::Tensor x, torch::Tensor y) {
    auto z = (torch::relu(x - 2) * y + 1).sum() / x.mean() + torch::rsqrt(y).max();
    auto o = torch::zeros({2, 3}, x.options().dtype(torch::kFloat64));
    o.add_(z.item<double>());
    return torch::cat({o.view({3, 2}).t(), o.slice(0, 0, 1).to(torch::kFloat64)}, 0).contiguous();
}
torch::Tensor unknown(torch::Tensor x) { return torch::mish(x); }
std::string put(torch::Tensor x) {
    x.index_put_({torch::tensor({1, 1})}, torch::ones({2}), true);
    x.index_put_({0}, 7);
    return c10::str(x);
}
""", ["many", "unknown", "put"])  # fmt: skip
    x, y = floats(1, 2, 3), floats(4, 4, 4)
    made = mod.many(x, y)
    assert made.shape == (3, 3) and made.dtype == numpy.float64 and made.flags.c_contiguous
    assert numpy.allclose(made, (numpy.maximum(x - 2, 0) * y + 1).sum() / x.mean() + 0.5)
    with pytest.raises(kops.Unsupported, match=r"mish\(\) of torch is not known for NumPy arrays"):
        mod.unknown(x)
    assert mod.put(x) == "[7. 4. 3.]"


def test_numpy_computes_as_torch() -> None:
    mod = loaded("""
std::vector<torch::Tensor> typed(torch::Tensor i, torch::Tensor h, torch::Tensor b) {
    return {i + 1.5, i.mean(), torch::where(i > 1, 1.0, 0.0), torch::cat({i, i.to(torch::kFloat)}), h * i, h + 0.1, b + 300, 0 - b, b.sum(),
            i.to(i.options().dtype(torch::kInt)), torch::zeros_like(i, torch::kDouble), i.pow(2.0), i + i.to(torch::kDouble)};
}
bool copies(torch::Tensor x) { return x.to(torch::kFloat, false, true).is_same(x) || !x.to(torch::kFloat).is_same(x); }
std::vector<torch::Tensor> indexed(torch::Tensor x, torch::Tensor i) {
    using torch::indexing::Slice;
    return {x.index({Slice(), i}), x.index({i.to(torch::kByte)}), x.narrow(0, -2, 2)};
}
void wrong(torch::Tensor x, int kind) {
    if (kind == 0) x.add_(1.5);
    if (kind == 1) x.div_(2);
    if (kind == 2) x.narrow(0, 2, 2);
    if (kind == 3) x.to(torch::kByte).fill_(300);
    if (kind == 4) torch::full({1}, 128, torch::kChar);
    if (kind == 5) x.index({torch::indexing::Slice(torch::indexing::None, torch::indexing::None, -1)});
}
""", ["typed", "copies", "indexed", "wrong"])  # fmt: skip
    i, h, b = numpy.array([1, 2, 3]), numpy.array([1, 2, 3], "float16"), numpy.array([1, 255, 0], "uint8")
    made = mod.typed(i, h, b)
    kinds = ["float32"] * 4 + ["float16"] * 2 + ["uint8"] * 2 + ["int64", "int32", "float64", "float32", "float64"]
    assert [str(one.dtype) for one in made] == kinds
    assert made[0].tolist() == [2.5, 3.5, 4.5] and made[6].tolist() == [45, 43, 44] and made[7].tolist() == [255, 1, 0]
    assert not mod.copies(floats(1))
    across, masked, last = mod.indexed(numpy.arange(6).reshape(3, 2), numpy.array([0, 1, 1]))
    assert across.flags.c_contiguous and across.tolist() == [[0, 1, 1], [2, 3, 3], [4, 5, 5]]
    assert masked.tolist() == [[2, 3], [4, 5]] and last.tolist() == [[2, 3], [4, 5]]
    for kind, why in enumerate([
        "result type float32 can't be cast to the desired output type int64", "result type float32 can't be cast",
        r"start \(2\) \+ length \(2\) exceeds", "type uint8_t without overflow", "type int8_t without overflow", "step must be greater",
    ]):  # fmt: skip
        with pytest.raises((RuntimeError, ValueError), match=why):
            mod.wrong(i, kind)


def test_dtypes_of_results_are_torchs() -> None:
    """NumPy widens where torch does not, and cuts what torch refuses. Each was held against torch."""
    mod = loaded("""
std::vector<torch::Tensor> hundred(torch::Tensor x) {
    std::vector<torch::Tensor> v;
    for (int i = 0; i < 100; i++) v.push_back(x + i);
    return v;
}
std::vector<torch::Tensor> made(torch::Tensor x, torch::Tensor half) {
    return {x * 2.5, torch::sqrt(x), x + half, x.cumsum(0, torch::kFloat64), half.softmax(0, torch::kFloat32), torch::pow(x, 0.5)};
}
std::vector<torch::Tensor> norms(torch::Tensor x) { return {torch::norm(x, INFINITY), torch::norm(x, 0), x.norm()}; }
torch::Tensor copied(torch::Tensor x) { return x.to(torch::kFloat32, false, true); }
torch::Tensor in_place(torch::Tensor x) { return x.add_(0.5); }
""", ["made", "norms", "copied", "in_place", "hundred"])  # fmt: skip
    x = numpy.array([1, 4])
    made = [str(one.dtype) for one in mod.made(x, x.astype("float16"))]
    assert made == ["float32", "float32", "float16", "float64", "float32", "float32"]
    assert [float(one) for one in mod.norms(floats(0, 3, -4))] == [4, 2, 5]
    assert [float(one[0]) for one in mod.hundred(floats(1))] == [*range(1, 101)]
    y = floats(1)
    assert mod.copied(y) is not y and mod.in_place(y).tolist() == [1.5]
    with pytest.raises(RuntimeError, match="result type float32 can't be cast to the desired output type int64"):
        mod.in_place(x)
    assert x.tolist() == [1, 4]


def test_macros_and_defaults_are_given() -> None:
    source = PUT + "void g(torch::Tensor x) { put<<<1, 1>>>(x.data_ptr<float>(), FACTOR * OTHER, 0); }\n"
    mod = loaded(source, {"g": "Puts."}, extra_cuda_cflags=["-DFACTOR=2.5f", "-O3"], extra_cflags=["-DOTHER=2"])
    x = floats(0)
    mod.g(x)
    assert x.tolist() == [5] and mod.g.__doc__ == "Puts."


def test_both_sources_may_define_the_same() -> None:
    same = "static int helper() { return 3; }\n"
    cpp = f"{same}int g();\nint h() {{ return helper() + g(); }}\n"
    assert loaded(f"{same}{PUT}int g() {{ return helper(); }}\n", ["g", "h"], cpp).h() == 6


def test_files(tmp_path: Path) -> None:
    (tmp_path / "common.h").write_text("#pragma once\n__global__ void one(float* x) { x[0] = 1; }\nvoid launch(torch::Tensor x);\n")
    (tmp_path / "a.cu").write_text(
        HEAD + '#include "common.h"\nvoid launch(torch::Tensor x) {\n one<<<1, 1>>>(x.data_ptr<float>());\n}\n'
    )
    (tmp_path / "b.cpp").write_text(
        "#include <torch/extension.h>\nvoid launch(torch::Tensor x);\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("launch", &launch); }\n'
    )
    mod = kops.load(name="files", sources=[str(tmp_path / "b.cpp"), tmp_path / "a.cu"], fallback="interpret", verbose=True)
    x = floats(0)
    mod.launch(x)
    assert x.tolist() == [1]
    with pytest.raises(kops.BadArgument, match="PYBIND11_MODULE"):
        kops.load(name="files", sources=[tmp_path / "a.cu"])
    with pytest.raises(TypeError, match="sources="):
        kops.load()


def test_sources_are_apart() -> None:
    """What one of the two sources defines is not seen in the other, as in torch, where both are compiled alone."""
    cuda = PUT + "#define SCALE 2\n#define number 7\nusing integer = char;\nint g() { return SCALE; }\n"
    cpp = "#ifndef SCALE\n#define SCALE 3\n#endif\nint g();\ntypedef int integer;\n"
    cpp += "int h() { int number = g(); return SCALE * 10 + number; }\n"
    assert loaded(cuda, ["g", "h"], cpp).h() == 32
    mod = loaded(cuda.replace("using integer = char;", ""), ["g", "h"], cpp, extra_cflags=["-DSCALE=5"])
    assert mod.h() == 52 and mod.g() == 2


def test_functions_beside_a_module_are_refused() -> None:
    """As by torch, whose linker finds the module twice."""
    module = "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("
    with pytest.raises(kops.BadArgument, match="leave functions out"):
        loaded(f'{PUT}int g() {{ return 1; }}\n{module}"g", &g); }}\n', ["g"])


def test_files_of_cuda_are_apart(tmp_path: Path) -> None:
    """A macro or a helper of one file is not seen in the next, as with nvcc."""
    source = """#include <torch/extension.h>
#ifndef BLOCK
#define BLOCK {n}
#endif
static __device__ float helper() {{ return {n}; }}
template <typename T> __global__ void named_{n}(T* p) {{ p[0] = BLOCK + helper(); }}
__global__ void same(float* p) {{ p[0] = {n}; }}
void f{n}(torch::Tensor x, bool one) {{
    float* p = x.data_ptr<float>();
    if (one) same<<<1, 1>>>(p); else named_{n}<<<1, 1>>>(p);
}}
"""
    for n in (1, 2):
        (tmp_path / f"{n}.cu").write_text(source.format(n=n).replace("__global__ void same", "static __global__ void same"))
    (tmp_path / "m.cpp").write_text(
        "#include <torch/extension.h>\nvoid f1(torch::Tensor x, bool one);\nvoid f2(torch::Tensor x, bool one);\n"
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f1", &f1); m.def("f2", &f2); }\n'
    )
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "extension.h").write_text("#error what is here is used\n")
    files = [tmp_path / name for name in ("m.cpp", "1.cu", "2.cu")]
    mod = kops.load(name="apart", sources=files, extra_include_paths=[str(tmp_path)], fallback="interpret")
    x, y = floats(0), floats(0)
    mod.f1(x, False)
    mod.f2(y, False)
    assert [x[0], y[0]] == [2, 4]
    with pytest.raises(kops.Unsupported, match=r"same is a kernel of .*1\.cu and .*2\.cu"):
        mod.f1(x, True)


def test_headers_of_other_folders(tmp_path: Path) -> None:
    (tmp_path / "csrc" / "cuda").mkdir(parents=True)
    (tmp_path / "common.h").write_text("#pragma once\n#define FACTOR 4\n")
    (tmp_path / "csrc" / "wrong.h").write_text("\n\nint wrong = nothing;\n")
    source = tmp_path / "csrc" / "cuda" / "a.cu"
    source.write_text(
        HEAD + '#include "../../common.h"\n#ifdef WRONG\n#include "../wrong.h"\n#endif\nint f() { return FACTOR; }\n'
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }\n'
    )
    assert kops.load(name="far", sources=[source], fallback="interpret").f() == 4
    (tmp_path / "common.h").write_text("#pragma once\n#define FACTOR 5\n")
    assert kops.load(name="far", sources=[source], fallback="interpret").f() == 5
    with pytest.raises(kops.CompileFailed, match=r"does not compile: \.\./wrong\.h:3: .*nothing"):
        kops.load(name="far", sources=[source], fallback="interpret", extra_cflags=["-DWRONG"])


def test_headers_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A header that the compiler finds in CPATH may change."""
    monkeypatch.setenv("CPATH", f"/nowhere:{tmp_path}")
    (tmp_path / "outer.h").write_text("#include <inner.h>\n")
    for value in (1, 2):
        (tmp_path / "inner.h").write_text(f"#define VALUE {value}\n")
        assert loaded("#include <outer.h>\nint f() { return VALUE; }\n", ["f"]).f() == value


def test_torch_library() -> None:
    mod = loaded("""
int add(int a, int b) { return a + b; }
TORCH_LIBRARY(mine, m) { m.def("add", add); }
""")  # fmt: skip
    assert mod.add(1, 2) == 3
    mod = loaded("""
int on_cpu(torch::Tensor x) { return 1; }
int on_gpu(torch::Tensor x) { return 2; }
int meta(torch::Tensor x) { return 3; }
int nothing() { return 4; }
TORCH_LIBRARY(mine, m) {
    m.def("where(Tensor x) -> int"); m.def("cpu_only(Tensor x) -> int"); m.def("nothing() -> int"); m.def("no(Tensor x) -> int");
}
TORCH_LIBRARY_IMPL(mine, Meta, m) { m.impl("where", &meta); m.impl("no", &meta); }
TORCH_LIBRARY_IMPL(mine, CPU, m) { m.impl("where", &on_cpu); m.impl("cpu_only", &on_cpu); }
TORCH_LIBRARY_IMPL(mine, CUDA, m) { m.impl("where", &on_gpu); }
TORCH_LIBRARY_IMPL(mine, CompositeExplicitAutograd, m) { m.impl("nothing", &nothing); }
""")  # fmt: skip
    x = floats(1)
    assert [mod.where(x), mod.cpu_only(x), mod.nothing()] == [2, 1, 4], "what is an array is told to be on a GPU"
    with pytest.raises(NotImplementedError, match="Could not run 'mine::no' with arguments from the 'CUDA' backend"):
        mod.no(x)
    mod = loaded("""
std::string on_cpu(torch::Tensor x, double alpha, std::vector<int64_t> sizes, c10::optional<double> p) { return "cpu"; }
std::string on_gpu(torch::Tensor x, double alpha, std::vector<int64_t> sizes, c10::optional<double> p) {
    return c10::str(x.is_cuda() ? "gpu " : "", alpha, sizes, p.has_value());
}
int64_t host(torch::Tensor x) { return x.is_cuda(); }
TORCH_LIBRARY(several, m) {
    m.def("place(Tensor(a!) x, float alpha=2.5, *, int[] sizes=[1, 2], float? p=None) -> str");
    m.def("host(Tensor x) -> int");
    m.def("nowhere(Tensor x) -> int");
}
TORCH_LIBRARY_IMPL(several, CPU, m) { m.impl("place", &on_cpu); m.impl("host", &host); }
TORCH_LIBRARY_IMPL(several, CUDA, m) { m.impl("place", &on_gpu); }
TORCH_LIBRARY_IMPL(several, Meta, m) { m.impl("nowhere", &host); }
""")  # fmt: skip
    x = floats(1)
    assert mod.place(x) == "gpu 2.51 20" and mod.place(x=x, p=1, alpha=3) == "gpu 31 21" and mod.host(x) == 0
    with pytest.raises(NotImplementedError, match="Could not run 'several::nowhere' with arguments from the 'CUDA' backend"):
        mod.nowhere(x)


@pytest.mark.parametrize(
    "source, functions, why",
    [
        ("void g() {\n  int a = nothing;\n}\n", ["g"], r"test: host code does not compile: cuda\.cu:5: .*nothing"),
        ("void g() {}\n", ["h"], "host code does not compile: functions of load_inline:1: .*'?h'?"),
        ("void g();\n", ["g"], "host code does not compile: .*undefined (reference|symbol).*g"),
        ("#error no way\nvoid g() {}\n", ["g"], r"cuda\.cu:4: .*no way"),
        ("struct S { std::string t; };\n__global__ void k(S s) {}\nvoid g() {}\n", ["g"], r"compile: cuda\.cu:5: .*copied as bytes"),
    ],
)
def test_errors_name_the_file_and_the_line(source: str, functions: Any, why: str) -> None:
    with pytest.raises(kops.CompileFailed, match=why) as caught:
        loaded(source, functions)
    assert caught.value.log


def test_a_wrong_kernel_is_found_at_its_launch() -> None:
    kernel = "__global__ void k(float* x) {\n  x[0] = nothing;\n}\n"
    mod = loaded(f"{kernel}void g(torch::Tensor x) {{ k<<<1, 1>>>(x.data_ptr<float>()); }}\n", ["g"])
    with pytest.raises(kops.interpret.InterpretError, match="nothing"):
        mod.g(floats(1))


def test_what_cannot_be_is_said() -> None:
    source = """
struct Box { float* p; };
__global__ void k(Box b) { b.p[0] = 1; }
__global__ void l(float** p) { p[0][0] = 1; }
void g(torch::Tensor x) { k<<<1, 1>>>(Box{x.data_ptr<float>()}); }
void h(torch::Tensor x) { l<<<1, 1>>>((float**)x.data_ptr()); }
"""
    mod = loaded(source, ["g", "h"])
    with pytest.raises(kops.Unsupported, match=r"argument 1 \(Box\) holds the address of a tensor"):
        mod.g(floats(1))
    with pytest.raises(kops.Unsupported, match="pointer to pointers"):
        mod.h(floats(1))
    with pytest.raises(kops.BadArgument, match="no name of a function"):
        loaded(source, ["g()"])
    with pytest.raises(kops.BadArgument, match="fallback"):
        kops.load_inline("test", "", HEAD + source, ["g"], fallback="nothing")


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(sys.path)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": paths, **environment}
    )


PROGRAM = f"""
import time, numpy, kops
source = {HEAD + SQUARE!r} + "// SALT"
start = time.perf_counter()
mod = kops.load_inline("tutorial", "", source, ["square_matrix"], fallback="interpret")
print(time.perf_counter() - start)
assert (mod.square_matrix(numpy.full((2, 2), 3, "float32")) == 9).all()
"""


def test_the_next_process_compiles_nothing(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    first = run(PROGRAM, **cache)
    assert first.returncode == 0, first.stderr
    made = sorted(path.name for path in (tmp_path / "kops" / "extension").iterdir())
    assert sum(name.endswith(".so") for name in made) == 1
    second = run(PROGRAM, **cache)
    assert second.returncode == 0, second.stderr
    assert sorted(path.name for path in (tmp_path / "kops" / "extension").iterdir()) == made
    assert float(second.stdout) < float(first.stdout)


def test_a_cache_that_was_copied(tmp_path: Path) -> None:
    """clang takes no precompiled header whose files have another time; folders of killed builds do not stay."""
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    assert run(PROGRAM, **cache).returncode == 0
    made = tmp_path / "kops" / "extension"
    (made / "tmpkilled").mkdir()
    for path in (*made.glob("prefix-*/kops/*.h"), made / "tmpkilled"):
        os.utime(path, (1, 1))
    done = run(PROGRAM.replace("SALT", "other"), **cache)
    assert done.returncode == 0, done.stderr
    assert not (made / "tmpkilled").exists()


def test_processes_build_once(tmp_path: Path) -> None:
    compiler = shutil.which("clang++") or shutil.which("g++")
    script = tmp_path / ("clang++" if compiler and "clang" in compiler else "g++")
    script.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\nexec {compiler} "$@"\n')
    script.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "CXX": str(script)}
    code = PROGRAM.replace("assert (mod", "0 and (mod")
    running = [subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True) for _ in range(8)]
    for process in running:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len([call for call in calls if "--version" not in call]) == 2, "the headers, and the extension"


def test_compilers_that_are_missing_or_die(tmp_path: Path) -> None:
    done = run(PROGRAM, XDG_CACHE_HOME=str(tmp_path), CXX="no-such-compiler")
    assert "there is no C++ compiler 'no-such-compiler'" in done.stderr and "set CXX" in done.stderr
    script = tmp_path / "g++"
    script.write_text("#!/bin/sh\nkill -9 $$\n")
    script.chmod(0o755)
    done = run(PROGRAM, XDG_CACHE_HOME=str(tmp_path), CXX=str(script))
    assert "CompileFailed" in done.stderr and "killed by signal 9" in done.stderr
    assert not list((tmp_path / "kops").glob("extension/*.so"))


def test_a_global_tensor_outlives_the_program() -> None:
    code = f"""
import numpy, kops
mod = kops.load_inline("held", "", {HEAD!r} + "void keep(torch::Tensor x) {{ static torch::Tensor kept; kept = x; }}", ["keep"])
mod.keep(numpy.zeros(3, "float32"))
"""
    done = run(code)
    assert done.returncode == 0, done.stderr


def test_numbers_that_are_special(semantics: Any) -> None:
    mod = loaded(PUT + "void g(torch::Tensor x, double v) { put<<<1, 1>>>(x.data_ptr<float>(), v, 0); }\n", ["g"])
    for value in (math.inf, -0.0, 1e-45):
        x = floats(7)
        mod.g(x, value)
        assert x.tobytes() == floats(value).tobytes()


def _softmax(x: Any) -> Any:
    made = numpy.exp(x - x.max(axis=1, keepdims=True))
    return made / made.sum(axis=1, keepdims=True)


def _grey(x: Any) -> Any:
    return (0.2989 * x[0] + 0.5870 * x[1] + 0.1140 * x[2]).astype("uint8")


RANDOM = numpy.random.default_rng(1)


@pytest.mark.skipif(not (ROOT / "tests" / "support").is_dir(), reason="the source tree has the tutorials")
@pytest.mark.parametrize(
    "text, cpp, function, inputs, expected",
    [
        ("VECTOR_ADD", None, "vector_add", [RANDOM.random(1000), RANDOM.random(1000)], numpy.add),
        ("SQUARE", None, "square_matrix", [RANDOM.random((37, 50))], numpy.square),
        ("GREY", None, "rgb_to_grayscale", [RANDOM.integers(0, 256, (3, 20, 37), "uint8")], _grey),
        ("MATMUL", None, "matmul", [RANDOM.random((33, 40)), RANDOM.random((25, 40)).T], numpy.matmul),
        ("SOFTMAX", None, "softmax", [RANDOM.random((5, 100))], _softmax),
        ("LEAKY", "LEAKY_CPP", "forward", [RANDOM.random(1000) - 0.5, 0.25], lambda x, s: (numpy.where(x > 0, x, s * x), x)),
        ("TOTAL", None, "total", [RANDOM.random((70, 80)).T.astype("float64"), 0.5, True], lambda x, f, t: x.sum() * f * (2 if t else 1)),
    ],
)
def test_tutorials(text: str, cpp: str | None, function: str, inputs: list[Any], expected: Any) -> None:
    sys.path.insert(0, str(ROOT / "tests"))
    from support import tutorials

    given = [x.astype("float32") if getattr(x, "dtype", None) == "float64" and text != "TOTAL" else x for x in inputs]
    cpp_text = getattr(tutorials, cpp) if cpp else ""
    mod = kops.load_inline(function, cpp_text, getattr(tutorials, text), None if cpp else [function], fallback="interpret")
    made, wanted = getattr(mod, function)(*given), expected(*given)
    for one, right in zip(made, wanted) if isinstance(wanted, tuple) else ((made, wanted),):
        assert one.shape == numpy.shape(right) and numpy.allclose(one, right, atol=1e-5)


def test_devices_streams_and_events() -> None:
    mod = loaded("""
#include <c10/cuda/CUDAGuard.h>
__global__ void one(float* x) { x[0] += 1; }
std::vector<int64_t> device(torch::Tensor x) {
    at::cuda::CUDAGuard guard(x.device());
    auto stream = at::cuda::getCurrentCUDAStream();
    cudaEvent_t start, stop;
    cudaEventCreate(&start);
    cudaEventCreate(&stop);
    cudaEventRecord(start, stream);
    one<<<1, 1, 0, stream>>>(x.data_ptr<float>());
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    cudaEventRecord(stop, stream);
    cudaEventSynchronize(stop);
    float ms = -1;
    cudaEventElapsedTime(&ms, start, stop);
    cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, 0);
    int blocks = 0, count = 0;
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, one, 256, 0);
    cudaGetDeviceCount(&count);
    return {ms >= 0, properties.warpSize, properties.maxThreadsPerBlock, properties.multiProcessorCount > 0, blocks, count > 0};
}
__constant__ float factors[4];
void symbols(torch::Tensor x) { float host[4] = {1, 2, 3, 4}; cudaMemcpyToSymbol(factors, host, sizeof(host)); }
""", ["device", "symbols"])  # fmt: skip
    x = floats(1)
    assert list(mod.device(x)) == [1, 32, 1024, 1, 8, 1] and x.tolist() == [2]
    with pytest.raises(kops.Unsupported, match=r"cudaMemcpyToSymbol\(\) of the CUDA runtime"):
        mod.symbols(x)


def test_variables_of_the_device_stay() -> None:
    source = """
__device__ int calls = 10;
static __device__ const int step = 1;
__device__ __forceinline__ int more(int a) { return a + step; }
__global__ void count() { calls = more(calls); }
__global__ void ask(int* y) { y[0] = calls; }
template <typename T> __global__ void ask_as(T* y) { y[0] = calls; }
void g(torch::Tensor y) { count<<<1, 1>>>(); count<<<1, 1>>>(); ask<<<1, 1>>>(y.data_ptr<int>()); }
void h(torch::Tensor y) { ask_as<<<1, 1>>>(y.data_ptr<int>()); }
"""
    mod = loaded(source, ["g", "h"])
    y = numpy.zeros(1, "int32")
    mod.g(y)
    assert y.tolist() == [12]
    mod.g(y)
    assert y.tolist() == [14]
    with pytest.raises(kops.Unsupported, match="variable calls of the device"):
        mod.h(y)


def test_kernels_with_names_of_their_own() -> None:
    """Parameters without names, packs, and kernels that a macro makes."""
    mod = loaded("""
#define KERNEL(name, op) __global__ void name(float* y, float x) { y[0] = y[0] op x; }
KERNEL(plus, +)
KERNEL(times, *)
template <typename... A> __global__ void all(float* y, A... a) { y[0] = (0 + ... + a); }
__global__ void unnamed(float* y, const int) { y[0] = 9; }
#define RUN(k, ...) do { k<<<1, 1>>>(__VA_ARGS__); } while (0)
void g(torch::Tensor y) {
    float* p = y.data_ptr<float>();
    RUN(plus, p, 2); RUN(times, p + 1, 3); RUN(all, p + 2, 1, 2.5f, 3u); unnamed<<<1, 1>>>(p + 3, 1);
}
""", ["g"])  # fmt: skip
    y = floats(1, 2, 3, 4)
    mod.g(y)
    assert y.tolist() == [3, 6, 6.5, 9]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_torch() -> None:
    import torch

    sys.path.insert(0, str(ROOT / "tests"))
    from support.tutorials import TUTORIALS

    for tutorial in TUTORIALS:
        functions = None if "PYBIND11_MODULE" in tutorial.cpp else [tutorial.function]
        mod = kops.load_inline(tutorial.name, tutorial.cpp, tutorial.cuda, functions, fallback="interpret")
        inputs = tutorial.inputs("cpu")
        torch.testing.assert_close(getattr(mod, tutorial.function)(*inputs), tutorial.expected(*inputs), atol=1e-5, rtol=1e-4)
    mod = loaded("""
std::vector<torch::Tensor> many(torch::Tensor x, c10::optional<torch::Tensor> bias) {
    auto y = torch::matmul(x, x.t()).softmax(-1);
    auto z = torch::add(y, bias.has_value() ? *bias : torch::ones_like(y), 2).to(torch::kFloat16);
    z.index_put_({torch::indexing::Slice(0, 1)}, 7);
    return {y, z, x.index({0, torch::indexing::Slice(1)}), torch::empty({0}), std::get<0>(x.max(1)), torch::tensor({1, 2})};
}
torch::Tensor same(torch::Tensor x) { x.add_(1); x.resize_({2, 2}); return x; }
torch::Tensor wrong(torch::Tensor x) { return torch::matmul(x, x); }
bool told(torch::Tensor x) {
    auto made = torch::zeros({2}, torch::device(torch::kCUDA).dtype(torch::kFloat64));
    return x.is_cuda() && made.is_cuda() && made.cuda().is_cuda() && !made.cpu().is_cuda() && !torch::zeros({2}).is_cuda();
}
torch::Tensor constant() { return torch::tensor({1.5, 2.5}, torch::kFloat32); }
std::string text(torch::Tensor x) { return c10::str(x); }
std::tuple<bool, bool, torch::Tensor> unrecorded(torch::Tensor x) {
    torch::NoGradGuard guard;
    x.add_(1);
    return {(x * 2).requires_grad(), torch::GradMode::is_enabled(), x.grad()};
}
std::vector<torch::Tensor> backward(torch::Tensor x) {
    auto [first, second, third] = torch::convolution_backward(x, x, x, {1}, {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1, {true, false, true});
    return {first, second, third};
}
std::vector<torch::Tensor> apart(torch::Tensor x) { return x.unbind(0); }
std::vector<torch::Tensor> formed(torch::Tensor x) {
    x.index_put_({torch::tensor({0, 0})}, torch::ones({2, 1, 2, 2}), true);
    return {torch::tensor({1.0}, torch::requires_grad()), x.to(torch::kHalf, false, false, torch::MemoryFormat::ChannelsLast),
            torch::from_blob(nullptr, {0, 2})};
}
""", ["many", "same", "wrong", "told", "constant", "text", "apart", "formed", "unrecorded", "backward"])  # fmt: skip
    x = torch.randn(3, 4)
    y, z, row, nothing, most, pair = made = mod.many(x, None)
    assert type(made) is list
    torch.testing.assert_close(y, torch.softmax(x @ x.T, -1))
    assert z.dtype == torch.float16 and bool((z[0] == 7).all()) and bool((z[1:] == (y[1:] + 2).half()).all())
    assert bool((row == x[0, 1:]).all()) and nothing.numel() == 0 and bool((most == x.max(1)[0]).all()) and pair.tolist() == [1, 2]
    a = torch.zeros(4)
    assert mod.same(a) is a and a.shape == (2, 2)
    assert mod.told(x) and mod.constant().tolist() == [1.5, 2.5]
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        mod.wrong(x)
    gradients = loaded("""
torch::Tensor scaled(torch::Tensor x, bool guard, bool fail) {
    c10::optional<torch::NoGradGuard> made;
    if (guard) made.emplace();
    TORCH_CHECK(!fail && torch::GradMode::is_enabled() != guard);
    if (guard) x.mul_(2);
    return x * 3;
}
""", ["scaled"])  # fmt: skip
    leaf = torch.ones(2, requires_grad=True)
    assert gradients.scaled(leaf, False, False).requires_grad and not gradients.scaled(leaf, True, False).requires_grad
    assert leaf.tolist() == [2, 2]
    with pytest.raises(RuntimeError):
        gradients.scaled(leaf, True, True)
    assert torch.is_grad_enabled()
    numbers = loaded(ARGUMENTS)
    assert numbers.both(*[torch.zeros(2, 3)] * 2) == "[1, 6][1, 6]11"
    assert numbers.i64(torch.tensor(3)) == 3 and numbers.f64(torch.tensor([2.5])) == 2.5 and numbers.b(torch.tensor(1))
    with pytest.raises(TypeError, match="a number is needed"):
        numbers.f64(torch.zeros(2))
    assert mod.text(torch.ones(2, 2)) == " 1  1\n 1  1\n[ CPUFloatType{2,2} ]"
    assert [int(one) for one in mod.apart(torch.arange(100))] == list(range(100))
    grad, last, empty = mod.formed(a := torch.zeros(2, 2, 2, 2))
    assert grad.requires_grad and last.stride() == (8, 1, 4, 2) and empty.shape == (0, 2)
    assert bool((a[0] == 2).all()) and not a[1].any()
    x = torch.ones(2, requires_grad=True)
    assert mod.unrecorded(x) == (False, False, None) and x.tolist() == [2, 2] and torch.is_grad_enabled()
    assert [one is None for one in mod.backward(torch.ones(1, 1, 1, 1))] == [False, True, False]
