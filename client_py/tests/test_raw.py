"""`kops.RawKernel` and `kops.RawModule`: on the host's daemon in the interpreter, and with the real compiler on the stand-in driver."""

from __future__ import annotations

import ctypes
import dataclasses
import io
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kops
import numpy
import pytest
from built import backends, daemon_of
from kops._kernels import untyped
from kops._source.options import of_nvcc
from test_kernels import ADD2
from which import compiled_only

SOURCE = r"""
extern "C" __global__ void axpy(const float* x, const float* y, float* out, float a, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a * x[i] + y[i];
}
template <typename T> __global__ void scale(T* y, const T* x, T factor, int n)
{
    extern __shared__ unsigned char bytes[];
    T* shared = reinterpret_cast<T*>(bytes);
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { shared[threadIdx.x] = x[i]; y[i] = factor * shared[threadIdx.x]; }
}
namespace ns {
__global__ void bytes(void* to, const void* from, long long n)
{
    for (long long i = threadIdx.x; i < n; i += blockDim.x) ((char*)to)[i] = ((const char*)from)[i];
}
}
"""
interpreted = pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="the interpreter needs a compiler")


@pytest.fixture(scope="module")
def host() -> Iterator[kops.Client]:
    with daemon_of(backends.HOST) as running, kops.connect(running.socket_path, timeout=120) as client:
        yield client


@pytest.fixture
def standin() -> Iterator[kops.Client]:
    if backends.nvrtc() is None:
        pytest.skip("there is no NVRTC here")
    with daemon_of(backends.STANDIN) as running, kops.connect(running.socket_path, timeout=120) as client:
        yield client


def vectors(n: int = 100) -> tuple[Any, Any, Any]:
    rng = numpy.random.default_rng()
    return rng.standard_normal(n).astype("float32"), rng.standard_normal(n).astype("float32"), numpy.zeros(n, "float32")


@interpreted
@compiled_only
def test_a_kernel(host: kops.Client) -> None:
    axpy = kops.RawKernel(SOURCE, "axpy", ("-O3",), client=host, fallback="interpret")
    x, y, out = vectors()
    axpy((1,), (128,), (x, y, out, 2.0, 100))
    assert numpy.array_equal(out, numpy.float32(2) * x + y)
    axpy((4, 1, 1), (32, 1, 1), (x, x, out, numpy.float64(-1), numpy.int64(99)))
    assert (out[:99] == 0).all() and out[99] != 0
    axpy(1, 128, (out, y, out, numpy.float16(1), 100))
    assert numpy.array_equal(out[:99], y[:99]), "a tensor may be another argument as well"


@interpreted
@compiled_only
def test_a_module(host: kops.Client) -> None:
    module = kops.RawModule(code=SOURCE, name_expressions=["scale<float>", "scale<int>"], client=host, fallback="interpret")
    x, _, out = vectors()
    module.get_function("scale<float>")((1,), (128,), (out, x, 3, 100), shared_mem=512)
    assert numpy.array_equal(out, 3 * x) and module["scale<float>"] is module.get_function("scale<float>")
    integers = numpy.arange(100, dtype="int32")
    made = numpy.zeros_like(integers)
    module["scale<int>"]((1,), (128,), (made, integers, numpy.int64(2), 100), shared_mem=512)
    assert numpy.array_equal(made, 2 * integers)
    module["bytes"]((1,), (32,), (made, numpy.ascontiguousarray(integers[::-1]), 400))
    assert numpy.array_equal(made, integers[::-1]), "a pointer to void takes arrays of any dtype"
    later = kops.RawModule(code=SOURCE, client=host, fallback="interpret").get_function("scale<double>")
    doubles = numpy.ones(100)
    later((1,), (128,), (doubles, doubles, 4, 100), shared_mem=1024)
    assert (doubles == 4).all()


@interpreted
@compiled_only
def test_a_form_is_sought_while_another_thread_adds_one(host: kops.Client) -> None:
    source = 'extern "C" __global__ void twice(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= 2; }'
    twice = kops.RawKernel(source, "twice", client=host, fallback="interpret")
    forms = twice._untyped._forms

    class Other:
        @property
        def params(self) -> tuple[Any, ...]:
            forms[("theirs",)] = forms[("ours",)]
            return ()

    forms[("ours",)] = Other()
    x = numpy.ones(8, "float32")
    twice((1,), (8,), (x, 8))
    assert (x == 2).all()


@interpreted
@compiled_only
def test_memory_with_gaps_is_the_kernels_own_business(host: kops.Client) -> None:
    """A column's address is that of its first element; the kernel gets at the rows between."""
    axpy = kops.RawKernel(SOURCE, "axpy", client=host, fallback="interpret")
    matrix = numpy.arange(12, dtype="float32").reshape(3, 4)
    column, out = matrix[:, 1], numpy.zeros(9, "float32")
    axpy((1,), (16,), (column, column, out, 1, 9))
    assert numpy.array_equal(out, 2 * matrix.reshape(-1)[1:10])
    axpy((1,), (16,), (out, out, matrix.T, 1, 9))
    assert numpy.array_equal(matrix.reshape(-1)[:9], 2 * out) and matrix[2, 3] == 11
    with pytest.raises(kops.BadArgument, match="negative strides"):
        axpy((1,), (16,), (out[::-1], out, out, 1, 9))


@interpreted
def test_arguments_that_do_not_fit(host: kops.Client) -> None:
    axpy = kops.RawKernel(SOURCE, "axpy", client=host, fallback="interpret")
    x = numpy.zeros(32, "float32")
    for arguments, error, why in (
        ((x, x, x, 1.0), kops.SignatureMismatch, "takes 5 arguments, got 4"),
        ((x, x, x, x, 1), kops.WrongType, r"argument 4 \(`float a`\) is a number, not ndarray"),
        ((x, x, 4096, 1.0, 1), kops.WrongType, "an address means nothing to another process: pass the array itself"),
        ((x, x, x, 1.0, None), kops.WrongType, "is a number, not None"),
        ((x, x, x, 1.0, 1.5), kops.WrongType, "must be a whole number"),
        ((x, x, x, 1e300, 1), kops.OutOfRange, "too large for f32"),
        ((x, x, x, 1.0, numpy.int64(2**31)), kops.OutOfRange, "does not fit i32"),
        ((x, x, x, 1 + 1j, 1), kops.WrongType, "must be a number"),
    ):
        with pytest.raises(error, match=why):
            axpy((1,), (32,), arguments)


def test_what_cannot_be(host: kops.Client, tmp_path: Path) -> None:
    path, binary = tmp_path / "axpy.cu", tmp_path / "x.cubin"
    path.write_text(SOURCE)
    binary.write_bytes(b"\x7fELF")
    module = kops.RawModule(path=path, client=host, fallback="interpret")
    assert module.file_path == module["axpy"].file_path == str(path)
    assert kops.RawModule(SOURCE, client=host).file_path is kops.RawKernel(SOURCE, "axpy", client=host).file_path is None
    for refused, why in (
        (lambda: module.get_global("table"), "no address in this process"),
        (lambda: module.get_texref("t"), "texture"),
        (lambda: kops.RawKernel(SOURCE, "axpy", translate_cucomplex=True, client=host), "cuda::std::complex"),
        (lambda: kops.RawModule(code=SOURCE, enable_cooperative_groups=True, client=host), "whole grid"),
        (lambda: kops.RawModule(path=binary, client=host), "compiled already"),
    ):
        with pytest.raises(kops.Unsupported, match=why):
            refused()
    for wrong, why in (
        (lambda: kops.RawModule(client=host), "code= or path="),
        (lambda: kops.RawModule(SOURCE, path="x.cu", client=host), "code= or path="),
        (lambda: kops.RawKernel(SOURCE, "axpy", backend="hip", client=host), "nvrtc, nvcc"),
        (lambda: kops.RawKernel(5, "axpy", client=host), "as a text"),  # type: ignore[arg-type]
        (lambda: kops.RawModule(code="int x;", client=host).compile(), "shows no kernel"),
    ):
        with pytest.raises(kops.BadArgument, match=why):
            wrong()
    for how, why in (({"jitify": True}, "stand-ins"), ({"backend": "nvcc"}, "NVRTC")):
        for make in (lambda: kops.RawKernel(SOURCE, "axpy", client=host, **how), lambda: kops.RawModule(SOURCE, client=host, **how)):  # noqa: B023
            with pytest.warns(UserWarning, match=f"{next(iter(how))}=.*changes nothing: .*{why}") as told:
                make()
            assert told[0].filename == __file__
    # There is nothing to compile for, or nothing to compile with.
    refusal, why = (kops.MissingKey, 'fallback="interpret"') if backends.nvrtc() is not None else (kops.Unsupported, "NVRTC was not found")
    with pytest.raises(refusal, match=why):
        kops.RawKernel(SOURCE, "axpy", client=host).compile()


def test_compiled_by_the_daemon(standin: kops.Client, tmp_path: Path) -> None:
    (tmp_path / "two.cuh").write_text("#define TWO 2\n")
    source = '#include "two.cuh"\n' + ADD2 + SOURCE + "static_assert(TWO == 2 && THREE == 3);\n"
    options = (f"-I{tmp_path}", "-std=c++17", "-DTHREE=3", "-O3", "-arch=sm_90", "--expt-relaxed-constexpr")
    module = kops.RawModule(code=source, options=options, name_expressions=("scale<float>",), client=standin)
    module.compile(log := io.StringIO())
    before = standin.stats()["kernels"]["compiles"]
    add2 = module.get_function("add2_kernel")
    a, b, c = vectors()
    add2((1,), (128,), (c, a, b, 100))
    assert numpy.array_equal(c, a + b) and isinstance(log.getvalue(), str)
    c[:] = 0
    add2((1,), (128,), (c.view("int32"), a.view("uint8"), b.view("int32"), 100))
    assert numpy.array_equal(c, a + b), "dtypes are not compared with the source"
    scale = module.get_function("scale<float>")
    assert scale.attributes == {name: getattr(scale, name) for name in scale.attributes} and 0 < scale.num_regs < 256
    assert scale.binary_version >= 75 and scale.max_threads_per_block == 1024 and scale.shared_size_bytes == 0
    assert standin.stats()["kernels"]["compiles"] == before, "one compile is for all kernels of a module"
    assert module.get_function("scale<double>").num_regs > 0 and standin.stats()["kernels"]["compiles"] == before + 1
    with pytest.raises(kops.CompileFailed):
        module.get_function("nothing")
    with pytest.raises(kops.CompileFailed, match="identifier"):
        kops.RawKernel('extern "C" __global__ void f() { nonsense; }', "f", client=standin).compile()


def test_types_that_the_source_does_not_say(standin: kops.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """They come from the arguments, and their sizes are those of the compiled parameters."""
    source = r"""
    struct pair { float a, b; };
    #define KERNEL(name, body) extern "C" __global__ void name body
    KERNEL(made, (float* y, float a, long long n) { y[0] = a + n; })
    extern "C" __global__ void pairs(pair p, unsigned char c, float* y) { y[0] = p.a + p.b + c; }
    """
    y = numpy.zeros(4, "float32")
    made = kops.RawKernel(source, "made", client=standin)
    pairs = kops.RawKernel(source, "pairs", client=standin)
    for kernel, arguments, why in (
        (made, (y, numpy.float64(1), 7), "float64 of 8 bytes, and the compiled parameter has 4"),
        (made, (y, y, 7), "has 4 bytes, so it is no pointer"),
        (pairs, (1 + 2j, 3, y), "of a type that the source does not say"),
        (pairs, (numpy.complex128(1), 3, y), "16 bytes, and the compiled parameter has 8"),
    ):
        with pytest.raises(kops.WrongType, match=why):
            kernel((1,), (1,), arguments)
    declared = []
    monkeypatch.setattr(untyped, "launch", lambda kernel, *_: declared.append([f"{param.dtype} {param.name}" for param in kernel.params]))
    made((1,), (1,), (y, 1.5, 7))
    made((1,), (1,), (y, numpy.float32(1), numpy.uint64(7)))
    pairs((1,), (1,), (numpy.complex64(1 + 2j), 3, y))
    assert declared == [["f32 p0", "f32 p1", "i64 p2"], ["f32 p0", "f32 p1", "u64 p2"], ["u64 p0", "u8 c", "f32 y"]]


def test_options_of_nvcc() -> None:
    given = ["-O3", "-I/a", "-I", "/b", "--include-path=/c", "-gencode", "arch=compute_90,code=sm_90", "--arch=sm_90", "-DN=1", "-lineinfo",
             "-Xcompiler", "-I/d", "-ccbin", "g++"]  # fmt: skip
    assert of_nvcc(given) == (["-DN=1", "-lineinfo"], ["/a", "/b", "/c"])


STRUCTURES = r"""
typedef float2 cuFloatComplex;
typedef double2 cuDoubleComplex;
struct Params { float scale; short shift; double bias; };
struct Point { float x, y, z; };
extern "C" __global__ void structured(double* y, Params p, const Point* points, float4 v, cuDoubleComplex c, __int128 wide, int n)
{
    int i = threadIdx.x;
    if (i >= n) return;
    y[5 * i] = p.scale * points[i].z + p.shift + p.bias;
    y[5 * i + 1] = v.x + 10 * v.w;
    y[5 * i + 2] = c.x;
    y[5 * i + 3] = c.y;
    y[5 * i + 4] = (double)(long long)(wide >> 64);
}
extern "C" __global__ void moved(Point* points, cuFloatComplex* c, int n)
{
    int i = threadIdx.x;
    if (i < n) { points[i].y += points[i].x; c[i].y = -c[i].y; }
}
"""
PARAMS = numpy.dtype([("scale", "f4"), ("shift", "i2"), ("bias", "f8")], align=True)
POINT = numpy.dtype([("x", "f4"), ("y", "f4"), ("z", "f4")])
DECLARED = "out double* y[5 * n], bytes<16> p, const bytes<12>* points[n], float4 v, cuDoubleComplex c, __int128 wide, int n"


class OfCtypes(ctypes.Structure):
    _fields_ = [("scale", ctypes.c_float), ("shift", ctypes.c_int16), ("bias", ctypes.c_double)]


@interpreted
@pytest.mark.parametrize("how", ["raw", "declared"])
@pytest.mark.parametrize(
    "p, v, c",
    [
        (numpy.array((2, -3, 0.5), PARAMS), (1, 2, 3, 4), 6 - 7j),
        (numpy.array((2, -3, 0.5), PARAMS)[()], numpy.arange(1, 5), numpy.complex64(6 - 7j)),
        (numpy.array([(2, -3, 0.5)], PARAMS)[0], numpy.array((1, 2, 3, 4), "f4,f4,f4,f4"), [6, -7]),
        (OfCtypes(2, -3, 0.5), numpy.arange(1, 5, dtype="float32").tobytes(), numpy.array(6 - 7j)),
        (numpy.array((2, -3, 0.5), PARAMS).tobytes(), [1.0, 2, numpy.float32(3), 4], numpy.array((6, -7), "f8,f8")),
    ],
)
@compiled_only
def test_structures_by_value_and_by_pointer(host: kops.Client, how: str, p: Any, v: Any, c: Any) -> None:
    points, y = numpy.zeros(3, POINT), numpy.zeros(15)
    points["z"] = [1, 2, 3]
    if how == "raw":
        if not isinstance(p, (numpy.void, numpy.ndarray)):
            p = numpy.frombuffer(bytes(p), PARAMS)[0]  # of a structure that nothing declares, the dtype is the size
        elif isinstance(p, numpy.ndarray):
            p = p[()]
        raw = kops.RawKernel(STRUCTURES, "structured", client=host, fallback="interpret")
        raw((1,), (32,), (y, p, points, v, c, -(5 << 64), 3))
    else:
        kernel = host.kernel(STRUCTURES, "structured", DECLARED, grid=1, block=32, fallback="interpret")
        assert kernel(y, p, points, v, c, -(5 << 64), 3) is y
    assert y.reshape(3, 5).tolist() == [[2 * z - 3 + 0.5, 41, 6, -7, -5] for z in (1, 2, 3)]


@interpreted
@pytest.mark.parametrize("shape", [(4,), (2, 2), ()])
@compiled_only
def test_arrays_of_structures_and_complex_numbers_are_written(host: kops.Client, shape: tuple[int, ...]) -> None:
    n = numpy.zeros(shape).size
    points, c = numpy.zeros(shape, POINT), numpy.full(shape, 1 + 2j, "complex64")
    points["x"], points["y"] = 5, 1
    kops.RawKernel(STRUCTURES, "moved", client=host, fallback="interpret")((1,), (32,), (points, c, n))
    declared = host.kernel(STRUCTURES, "moved", "bytes<12>* points[n], cuFloatComplex* c[n], int n", 1, 32, fallback="interpret")
    declared(points, c, n)
    assert (points["y"] == 11).all() and (points["x"] == 5).all() and (c == 1 + 2j).all()
    with pytest.raises(kops.KopsError, match="structures of 12 bytes, and those of the array have 16"):
        declared(numpy.zeros(4, PARAMS), c, n)
    with pytest.raises(kops.KopsError, match="not contiguous"):
        declared(points, numpy.zeros((8, 2), "complex64").T, n)


@interpreted
@compiled_only
def test_what_is_no_such_structure(host: kops.Client) -> None:
    kernel = host.kernel(STRUCTURES, "structured", DECLARED, grid=1, block=32, fallback="interpret")
    for change, why in (
        ({"p": numpy.zeros((), POINT)}, "p.* is a structure of 16 bytes: .*not 12 bytes"), ({"p": 1.0}, "structure of 16 bytes"),
        ({"p": numpy.zeros(2, PARAMS)}, "not 32 bytes"), ({"p": numpy.zeros((), PARAMS.newbyteorder())}, "structure of 16 bytes"),
        ({"v": (1, 2, 3)}, "4 numbers of f32"), ({"v": 1.0}, "4 numbers of f32"), ({"v": (1, 2, 3, "x")}, r"v\):?\[3\] must be a number"),
        ({"wide": 1 << 127}, "structure of 16 bytes"), ({"wide": True}, "structure of 16 bytes"), ({"n": b"abcd"}, "whole number"),
    ):  # fmt: skip
        given = {"p": numpy.zeros((), PARAMS), "points": numpy.zeros(1, POINT), "v": (1, 2, 3, 4), "c": 1j, "wide": 0, "n": 1, **change}
        with pytest.raises(kops.KopsError, match=why):
            kernel(y=numpy.zeros(5), **given)


# The stand-in driver knows the kernel by its name and by its parameters' sizes: its `n` as two halves.
PAIR = r"""
struct Pair { unsigned short low, high; };
extern "C" __global__ void custom_kernel(float* out, const float* in, Pair n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n.low + 65536 * n.high) out[i] = 2 * in[i];
}
"""


def test_structures_on_a_gpu(standin: kops.Client) -> None:
    x, y = numpy.arange(100, dtype="float32"), numpy.zeros(100, "float32")
    pair = numpy.array((70, 0), "u2,u2")
    raw = kops.RawKernel(PAIR, "custom_kernel", client=standin)
    raw((1,), (128,), (y, x, pair))
    assert numpy.array_equal(y, numpy.where(x < 70, 2 * x, 0))
    for signature in ("out float* out, const float* in_, bytes<4> n", "out float* out, const float* in_, ushort2 n"):
        kernel = standin.kernel(PAIR, "custom_kernel", signature, grid=1, block=128)
        for low, call in enumerate((kernel, kernel[1, 128], kernel[1, (128,)]), 40):
            y[:] = 0
            call(y, x, numpy.array((low, 0), "u2,u2"))
            assert numpy.array_equal(y, numpy.where(x < low, 2 * x, 0))
        with standin.sequence():
            kernel(y, x, b"\x50\x00\x00\x00")
        assert numpy.array_equal(y, numpy.where(x < 80, 2 * x, 0))
        with pytest.raises(kops.WrongType, match="structure of 4 bytes"):
            kernel(y, x, 4)
    with pytest.raises(kops.SignatureMismatch, match="6 bytes"):
        standin.kernel(PAIR, "custom_kernel", "float* out, const float* in_, bytes<6> n", grid=1, block=128)
    link = standin._live()
    link.info = dataclasses.replace(link.info, features=tuple(f for f in link.info.features if f != "structures"))  # an older daemon's
    with pytest.raises(kops.Unsupported, match="structures"):
        standin.kernel(PAIR, "custom_kernel", "float* out, const float* in_, bytes<4> n", grid=1, block=128)
