"""Kernels with fallback="interpret" and a daemon that has no GPU."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon
from test_first_hour import host_only
from test_kernels import ADD2
from which import compiled_only

pytestmark = [
    compiled_only, pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="the interpreter needs a compiler"),
]  # fmt: skip
SIGNATURE = "out float* c, const float* a, const float* b, int n"
TWICE = """#include <torch/extension.h>
__global__ void twice_kernel(const float* x, float* y, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = 2 * x[i]; }
torch::Tensor twice(torch::Tensor x) {
    auto y = torch::empty_like(x);
    twice_kernel<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
"""
HOW = {"grid": "ceil_div(n, 256)", "block": 256, "fallback": "interpret"}


def _double(y: Any, x: Any, n: int) -> None:
    """
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2 * x[i];
    """


_double.__annotations__ = {"y": "out float*", "x": "const float*", "n": "int"}


@pytest.fixture
def arrays() -> Any:
    rng = numpy.random.default_rng()
    return [rng.standard_normal(1000).astype("float32") for _ in range(3)]


def test_the_environment_asks_for_the_interpreter(monkeypatch: pytest.MonkeyPatch, arrays: Any) -> None:
    """KOPS_INTERPRET=1: programs as they are run without a daemon."""
    monkeypatch.setenv("KOPS_SOCKET", "/nowhere/kopsd.sock")
    monkeypatch.setenv("KOPS_AUTOSTART", "0")
    c, a, b = arrays
    kern = kops.kernel(ADD2, "add2_kernel", SIGNATURE, "ceil_div(n, 256)", 256)
    with pytest.raises(kops.ConnectFailed):
        kern(c, a, b, 1000)
    monkeypatch.setenv("KOPS_INTERPRET", "1")
    kern = kops.kernel(ADD2, "add2_kernel", SIGNATURE, "ceil_div(n, 256)", 256)
    assert kern(c, a, b, 1000) is c and numpy.array_equal(c, a + b)
    kern[4, 256](c, b, b, 1000)
    assert numpy.array_equal(c, b + b)
    kops.RawKernel(ADD2, "add2_kernel")((4,), (256,), (c, a, a, 1000))
    assert numpy.array_equal(c, a + a)
    kops.RawModule(code=ADD2).get_function("add2_kernel")((4,), (256,), (c, a, b, 1000))
    assert numpy.array_equal(c, a + b) and numpy.array_equal(kops.elementwise("x + y")(a, b), a + b)
    assert numpy.allclose(kops.reduce("x", "a + b", identity=0)(a), a.sum(), atol=1e-3)
    mod = kops.load_inline("unchanged", "torch::Tensor twice(torch::Tensor x);", TWICE, ["twice"])
    assert numpy.array_equal(mod.twice(a), 2 * a)
    monkeypatch.setenv("KOPS_INTERPRET", "0")
    with pytest.raises(kops.ConnectFailed):
        kops.kernel(ADD2, "add2_kernel", SIGNATURE, "ceil_div(n, 256)", 256)(c, a, b, 1000)


def test_formulas_as_cupy_has_them(monkeypatch: pytest.MonkeyPatch, arrays: Any) -> None:
    monkeypatch.setenv("KOPS_INTERPRET", "1")
    c, a, b = arrays
    squared = kops.ElementwiseKernel("T x, T y", "T z", "z = (x - y) * (x - y)", "squared", preamble="#define ONE 1", options=("-O3",))
    assert numpy.allclose(squared(a, b), (a - b) ** 2) and squared(a, b, c) is c and numpy.allclose(c, (a - b) ** 2)
    two = kops.ElementwiseKernel("float32 x, float32 y, raw T t", "float32 s, float32 d", "s = x + y * t[0]; d = x - y", "two")
    s, d = two(a, b, numpy.array([2], "float32"), size=1000)
    assert numpy.allclose(s, a + 2 * b) and numpy.array_equal(d, a - b) and two(a, b, a[:1], c, s)[1] is s
    nothing = kops.ElementwiseKernel("T x", "T y", "y = -x", no_return=True)
    assert nothing(a, c) is None and numpy.array_equal(c, -a)
    assert isinstance(kops.ElementwiseKernel("T x", "T y", "y = -x", return_tuple=True)(a), tuple)
    norm = kops.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm", reduce_type="double")
    m = a.reshape(10, 100)
    assert numpy.allclose(norm(m, axis=1), numpy.linalg.norm(m, axis=1)) and norm(m, axis=0, keepdims=True).shape == (1, 100)
    assert norm(a, out := numpy.empty((), "float32")) is out and numpy.allclose(out, numpy.linalg.norm(a))
    for wrong in ("sqrt(a)", "z = a", "y == a"):
        with pytest.raises(kops.BadArgument, match="must assign the output, y"):
            kops.ReductionKernel("T x", "T y", "x", "a + b", wrong, "0")
    with pytest.raises(kops.Unsupported, match="loop_prep"):
        kops.ElementwiseKernel("T x", "T y", "y = x", loop_prep="int k;")


def test_kernels(daemon: FakeDaemon, arrays: Any) -> None:
    host_only(daemon)
    c, a, b = arrays
    with kops.connect(daemon.path) as k:
        kern = k.kernel(ADD2, "add2_kernel", SIGNATURE, **HOW)
        assert kern(c, a, b, 1000) is c and numpy.array_equal(c, a + b)
        kern[4, 256](c, b, b, n=1000)
        assert numpy.array_equal(c, b + b)
        double = k.cuda_kernel(_double, **HOW)
        double(c, a, 1000, blocking=True)
        assert numpy.array_equal(c, 2 * a)
        with pytest.raises(kops.interpret.InterpretError, match="a has 1000 elements"):
            kern(c, a, b, 1001)
        for call in (
            lambda: kern(c, a, b, 1000, timing=True), lambda: kern.submit(c, a, b, 1000), lambda: kern.profile(c, a, b, 1000),
            lambda: kern[1, 32].profile(c, a, b, 1000), lambda: k.sequence([(kern, c, a, b, 1000)]),
        ):  # fmt: skip
            with pytest.raises(kops.Unsupported, match="no GPU"):
                call()
        assert kern(c, a, a, 1000, where="here") is c and numpy.array_equal(c, a + a)
        with pytest.raises(kops.BadArgument, match="daemon, here, auto"):
            kern(c, a, b, 1000, where="there")
        with k.sequence(), pytest.raises(kops.Unsupported, match="records nothing"):
            kern(c, a, b, 1000)
        with pytest.raises(kops.Unsupported, match=r'made with fallback="interpret"'):
            k.kernel(ADD2, "add2_kernel", SIGNATURE, grid=4, block=256)
        with pytest.raises(kops.BadArgument, match='None or "interpret"'):
            k.kernel(ADD2, "add2_kernel", SIGNATURE, grid=4, block=256, fallback="cpu")
    assert not daemon.count("compile") and not daemon.count("launch")


def test_formulas(daemon: FakeDaemon, arrays: Any) -> None:
    host_only(daemon)
    c, a, b = arrays
    with kops.connect(daemon.path) as k:
        f = k.elementwise("x * y", fallback="interpret")
        total = k.reduce("x", "a < b ? b : a", identity="-INFINITY", fallback="interpret")
        assert numpy.array_equal(f(a[::-1], b, timeout=5), a[::-1] * b) and f(a, 2, out=c) is c and numpy.array_equal(c, 2 * a)
        assert numpy.array_equal(total(a.reshape(10, 100).T, axis=0, keepdims=True), a.reshape(10, 100).max(1)[None])
        assert numpy.array_equal(f(a, b, where="auto"), a * b)
        for formula in (f, total):
            with pytest.raises(kops.BadArgument, match="daemon, here, auto"):
                formula(*[a, b][: len(formula.inputs)], where="there")
        for call in (
            lambda: f(a, b, timing=True), lambda: f.submit(a, b), lambda: f.profile(a, b), lambda: k.sequence([(f, a, b)]),
            lambda: k.elementwise("x * y")(a, b), lambda: k.reduce("x", "a + b", identity=0)(a),
        ):  # fmt: skip
            with pytest.raises(kops.Unsupported, match="no GPU"):
                call()
    assert not daemon.count("compile") and not daemon.count("launch")


async def test_asyncio(daemon: FakeDaemon, arrays: Any) -> None:
    host_only(daemon)
    c, a, b = arrays
    async with kops.connect_async(daemon.path) as k:
        kern = await k.kernel(ADD2, "add2_kernel", SIGNATURE, **HOW)
        assert await kern(c, a, b, 1000) is c and numpy.array_equal(c, a + b)
        f, total = k.elementwise("x * y", fallback="interpret"), k.reduce("x", "a + b", identity=0, fallback="interpret")
        product, nothing = await asyncio.gather(f(a, b), total(a * 0))
        assert numpy.array_equal(product, a * b) and nothing == 0
        for call in (kern(c, a, b, 1000, timing=True), kern.profile(c, a, b, 1000), f(a, b, timing=True)):
            with pytest.raises(kops.Unsupported, match="no GPU"):
                await call
    assert not daemon.count("compile") and not daemon.count("launch")


def test_a_daemon_with_a_gpu_is_used(k: kops.Client, daemon: FakeDaemon, arrays: Any) -> None:
    c, a, b = arrays
    k.kernel(ADD2, "add2_kernel", SIGNATURE, **HOW)(c, a, b, 1000)
    assert numpy.array_equal(c, a + b) and daemon.count("launch") == 1
    assert numpy.array_equal(k.elementwise("x * y", fallback="interpret")(a, b), a * b) and daemon.count("launch") == 2
