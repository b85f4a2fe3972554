"""Elementwise kernels and reductions: what is generated is computed by the interpreter, behind a daemon that the tests play."""

from __future__ import annotations

import asyncio
import pickle
import shutil
from typing import Any

import fake_torch as torch
import kops
import numpy
import pytest
from fake_daemon import FakeDaemon, Refused
from kops._kernels import formulas as _elementwise
from kops._source import formulas as _layouts
from kops._source import reduction as _reduction
from which import compiled_only

pytestmark = [
    compiled_only, pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="the interpreter needs a compiler"),
]  # fmt: skip
SHAPES = (((1003,), (1003,)), ((), ()), ((7, 5), (5,)), ((3, 1, 4), (2, 1)), ((0, 3), (1, 3)), ((6, 1), (1, 9)))


def normal(*shape: int, dtype: str = "float32") -> Any:
    return (numpy.random.default_rng().standard_normal(shape) * 4).astype(dtype)


@pytest.mark.parametrize("shared", [False, True])
def test_any_strides(k: kops.Client, shared: bool) -> None:
    f = k.elementwise("x - y")
    x, y = normal(8, 6, 10), normal(10, 12, 8)
    if shared:
        x, y = k.array(x), k.array(y)
    for a, b in (
        (x, y[:, ::2].T), (x.T, y[:, :6]), (x[:, :, 3], y[2, :6, :].T), (x[::2, :, 1:7], y[0, 0, 0]), (x[2:3].T, y[:, 1:7, :1]),
        (x[:, ::-1], y[:, 6:, ::-1].T), (numpy.broadcast_to(x[0, 0], (6, 10)), x[1]), (x[:, :, None, 0], x[:, :, 1:4]),
        *((normal(*of_a), normal(*of_b)) for of_a, of_b in SHAPES),
    ):  # fmt: skip
        want = a - b
        result = f(a, b)
        assert type(result) is numpy.ndarray and result.dtype == numpy.float32 and numpy.array_equal(result, want)
        assert numpy.array_equal(f.interpret(a, b), want)
        ground = k.empty((*want.shape, 3)) if shared else numpy.empty((*want.shape, 3), numpy.float32)
        ground[...] = 7
        assert numpy.array_equal(f(a, b, out=ground[..., 1]), want) and (ground[..., ::2] == 7).all()


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "uint8", "int64", "bool"])
@pytest.mark.parametrize("n", [1, 4099])
def test_dtypes(k: kops.Client, dtype: str, n: int) -> None:
    x, y = normal(n, dtype=dtype), normal(n, dtype=dtype)
    wide = numpy.float32 if dtype == "float16" else dtype
    want = (x.astype(wide) * y.astype(wide) + x.astype(wide)).astype(dtype)  # one rounding
    result = k.elementwise("x * y + x")(x, y)
    assert result.dtype == dtype and numpy.allclose(result, want, rtol=1e-3 if dtype == "float16" else 1e-12)
    if n > 1:  # places that no vector of 16 bytes begins at
        shared = k.array(numpy.concatenate([x, y]))
        assert numpy.array_equal(k.elementwise("x * y + x")(shared[1:n], shared[n + 1 :]), k.elementwise("x * y + x")(x[1:], y[1:]))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_raw_operands(k: kops.Client, dtype: str) -> None:
    """Whole arrays, whose elements the formula takes itself, as CuPy's."""
    x, table = (10 * normal(7, 300)).astype(dtype), numpy.arange(9).astype(dtype)
    f = k.elementwise("raw T table, T x, raw int32 shift", "T out", "out = x + T(table[i % 9]) + T(shift[0])")
    shift = numpy.array([2], "int32")
    want = (x.astype("float64") + table[numpy.arange(2100) % 9].reshape(7, 300) + 2).astype(dtype)
    for given, expected in ((x, want), (x[::2], None), (x.T, None)):
        made = f(table, given, shift)
        assert numpy.array_equal(made, f.interpret(table, given, shift)) and made.shape == given.shape
        assert expected is None or numpy.allclose(made, expected, rtol=2e-3)
    only = k.elementwise("raw T table", "T out", "out = table[8 - i]")
    assert numpy.array_equal(only(table, out=numpy.zeros_like(table)), table[::-1])
    with pytest.raises(kops.WrongType, match="give out="):
        only(table)
    for wrong in (k.array(numpy.zeros((9, 4), dtype))[:, 0], 3):
        with pytest.raises(kops.KopsError, match="raw: pass a contiguous array"):
            f(wrong, x, shift)
    for make in (lambda: k.elementwise("T x", "raw T y", "y[i] = x"), lambda: k.reduce("x[i]", "a + b", inputs="raw T x")):
        with pytest.raises(kops.BadArgument, match="`raw` in"):
            make()


def test_the_full_form(k: kops.Client, daemon: FakeDaemon) -> None:
    text = "float s = alpha * x;\n sum = s + y + h; big = i > 2;"
    f = k.elementwise("T x, const U y, float alpha, half h", "U sum, bool big", text, name="axpy")
    x, y = normal(3, 4), normal(4, dtype="float64")
    total, big = f(x, y, 0.5, 2)
    assert total.dtype == numpy.float64 and big.dtype == bool and repr(f).endswith("half h" and "-> U sum, bool big>")
    assert numpy.allclose(total, numpy.float32(0.5) * x + y + 2) and numpy.array_equal(big.ravel(), numpy.arange(12) > 2)
    out = k.empty((3, 4), "f64"), numpy.empty((3, 4), bool)
    assert f(x, y, 0.5, numpy.float16(2), out=out)[0] is out[0] and numpy.array_equal(out[0], total) and numpy.array_equal(out[1], big)
    g = k.elementwise("", "float index", "index = i")
    assert numpy.array_equal(g(out=k.empty((2, 5))).ravel(), numpy.arange(10))
    h = k.elementwise("twice(x)", prelude="template <typename T> __device__ T twice(T x) { return x + x; }")
    assert numpy.array_equal(h(x), x + x)
    assert {params["entry"] for method, params in daemon.requests if method == "kernel"} == {"axpy_kernel", "elementwise_kernel"}


def test_in_place(k: kops.Client, daemon: FakeDaemon) -> None:
    f = k.elementwise("x * 2 + y")
    for x in (normal(100), k.array(normal(100)), normal(10, 10).T):
        y, before = normal(*x.shape), x.copy()
        assert f(x, y, out=x) is x and numpy.allclose(x, before * 2 + y, rtol=1e-6)
        before = x.copy()
        f(x, x, out=x)
        assert numpy.allclose(x, before * 3, rtol=1e-6)
    kinds = [[p["kind"] for p in params["params"][:2]] for method, params in daemon.requests if method == "kernel"]
    assert ["in", "inout"] in kinds


def test_each_form_is_compiled_once(k: kops.Client, daemon: FakeDaemon) -> None:
    f = k.elementwise("x + y")
    for _ in range(3):
        f(normal(50), normal(50))
        f(normal(5, 5), normal(5, 5))
        f(normal(5, 5), 2.0)
    assert daemon.count("compile") == 2, "arrays, and an array and a number"
    for n in (3, 5, 8):
        f(normal(n, n), normal(n))
    assert daemon.count("compile") == 3, "sizes and strides are arguments"
    f(normal(4, dtype="float64"), 1)
    assert daemon.count("compile") == 4
    for n in range(1, _elementwise.PLANS + 50):  # more layouts than are kept
        f._prepare((normal(n), 1), None)
    assert len(f._plans) <= _elementwise.PLANS and numpy.array_equal(f(numpy.float64([1, 2]), [3, 4]), [4, 6])


def test_what_is_refused(k: kops.Client, daemon: FakeDaemon) -> None:
    x, f = normal(4), k.elementwise("x + y")
    for call, kind, message in (
        (lambda: f(x), kops.BadArgument, r"takes 2 operands \(x, y\), got 1"),
        (lambda: f(x, normal(4, dtype="float64")), kops.DtypeMismatch, "y must be of float32, as x is, of the same type T, not of float64"),
        (lambda: f(normal(4, dtype="int32"), 1.5), kops.WrongType, r"\(y\) must be a whole number .i32., not 1.5"),
        (lambda: f(x, normal(3)), kops.ShapeMismatch, "broadcast"),
        (lambda: f(1, 2), kops.KopsError, "nothing tells what T is"),
        (lambda: f(x, x, out=normal(5)), kops.ShapeMismatch, "out has shape .4,., but out= .5,."),
        (lambda: f(x, x, out=normal(4, dtype="float64")), kops.DtypeMismatch, "out must be of float32"),
        (lambda: f(x, x, out=2.0), kops.WrongType, "out must be an array"),
        (lambda: f(x, "text"), kops.WrongType, "no tensor"),
        (lambda: k.elementwise("1 + 2"), kops.BadArgument, "names no operand"),
        (lambda: k.elementwise("T x", "T y"), kops.BadArgument, "inputs, outputs and a formula"),
        (lambda: k.elementwise("T* x", "T y", "y = x"), kops.BadArgument, r"`T\* x` declares no operand"),
        (lambda: k.elementwise("thing x", "T y", "y = x"), kops.BadArgument, "`thing` in `thing x` is no type"),
        (lambda: k.elementwise("float4 x", "T y", "y = x"), kops.BadArgument, "no type of an operand"),
        (lambda: k.elementwise("T x, T x", "T y", "y = x"), kops.BadArgument, "two operands have the name x"),
        (lambda: k.elementwise("T x", "T x", "x = x"), kops.BadArgument, "x is an input and an output"),
        (lambda: k.elementwise("T x", "U y", "y = x")(x), kops.DtypeMismatch, "nothing tells what U is, the type of y"),
        (lambda: k.elementwise("x", name="a b"), kops.BadArgument, "no name for a kernel"),
        (lambda: k.elementwise(" + ".join(f"x{i}" for i in range(16))), kops.LimitExceeded, "17 operands"),
    ):  # fmt: skip
        with pytest.raises(kind, match=message):
            call()
    assert not daemon.sent("launch")
    wide = k.elementwise(" + ".join(f"x{i}" for i in range(12)))
    arrays = [numpy.broadcast_to(normal(1, 3, 1, 3, 1), (2, 3, 2, 3, 2)) for _ in range(11)]
    with pytest.raises(kops.LimitExceeded, match="Pass contiguous copies"):
        wide(*arrays, normal(2, 3, 2, 3, 2))


def test_compilers_errors_name_the_formula(k: kops.Client, daemon: FakeDaemon) -> None:
    f = k.elementwise("T x", "T y", "float s = x;\ny = nothing(s)", name="fma")
    with pytest.raises(kops.interpret.InterpretError, match="fma:2:.*nothing"):
        f.interpret(normal(3))
    log = 'fma(2): error: identifier "nothing" is undefined'
    daemon.script["compile"] = lambda *_: (_ for _ in ()).throw(Refused("compile_failed", log, reason="source", log=log))
    with pytest.raises(kops.CompileFailed, match=r"fma \(`float s = x;") as error:
        f(normal(3))
    assert (error.value.file, error.value.line, error.value.reason) == ("fma", 2, "source")


def test_recorded_pending_and_asynchronous_calls(k: kops.Client, daemon: FakeDaemon) -> None:
    f = k.elementwise("x * y")
    x, y = k.array(normal(20)), k.array(normal(20))
    with k.sequence() as s:
        z = f(x, y)
        w = k.add(z, 1)
        v = s.launch(f, w, 2.0)
        with pytest.raises(kops.BadArgument, match="not run"):
            z.sum()
        with pytest.raises(kops.BadArgument, match="timing .* whole"):
            f(x, y, timing=True)
    assert numpy.allclose(v, (x * y + 1) * 2)
    assert numpy.allclose(k.sequence([(f, x, y), (f, x, 3, {"out": x})])[0], x / 3 * y)
    with k.program() as p:
        z = f(x, y)
        with pytest.raises(kops.BadArgument, match=r"k\.array"):
            f(normal(20), y)
    y[...] = 2
    p.run()
    assert numpy.allclose(z, x * 2)
    assert numpy.allclose(f.submit(x, y).result(), x * y)
    result, timings = f(x, y, timing=True)
    assert numpy.allclose(result, x * y) and isinstance(timings, kops.Timings)
    assert f.profile(x, y, repeat=8, conditions=False).op == "elementwise_kernel"
    again = pickle.loads(pickle.dumps(f))
    assert numpy.allclose(again(x, y), x * y)
    again._client.close()

    async def main() -> Any:
        async with kops.connect_async(daemon.path) as other:
            g = other.elementwise("x * y")
            async with other.sequence() as s:
                one = s.launch(g, x, y)
            return one, *await asyncio.gather(g(x, 2), g(x, y, timing=True))

    one, two, (three, timings) = asyncio.run(main())
    assert numpy.allclose(one, x * y) and numpy.allclose(two, x * 2) and numpy.allclose(three, x * y)
    assert isinstance(timings, kops.Timings)


def test_torch_tensors(k: kops.Client, with_torch: None) -> None:
    x, y = torch.tensor(normal(6, 4)), torch.tensor(normal(4, 6))
    f = k.elementwise("x + 2 * y")
    result = f(x, y.t())
    assert type(result) is torch.Tensor and numpy.allclose(result.array, x.array + 2 * y.array.T, rtol=1e-6)
    x.negated = True
    assert numpy.allclose(f(x, y.t()).array, -x.array + 2 * y.array.T, rtol=1e-6)


def test_loops_have_few_dimensions() -> None:
    def made(*arrays: Any) -> Any:
        shape = numpy.broadcast_shapes(*(a.shape for a in arrays))
        strides = [_layouts.broadcast_strides(a.shape, [s // a.itemsize for s in a.strides], shape) for a in arrays]
        return _layouts.loop(shape, strides)

    x = normal(4, 5, 6)
    assert made(x, x) == ((120,), ((1,), (1,)))
    assert made(x, x[0]) == ((4, 30), ((30, 1), (0, 1)))
    assert made(x[:, :1], x[:, :, :1]) == ((4, 5, 6), ((30, 0, 1), (30, 6, 0)))
    assert made(x[:1, :1, :1]).sizes == () and made(x.T).sizes == (6, 5, 4)
    assert made(x).narrow and not _layouts.loop((2, 2**31), ((2**31, 1),)).narrow and not _layouts.loop((2, 2), ((2**40, 1),)).narrow


def norm(k: Any, **how: Any) -> Any:
    return k.reduce("x * x", "a + b", "sqrt(a)", 0, name="norm", **how)


def exact(x: Any, **how: Any) -> Any:
    return numpy.sqrt(numpy.square(x.astype("float64")).sum(**how))


@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 2), (2, 0, 1), ()])
@pytest.mark.parametrize("keepdims", [False, True])
def test_axes(k: kops.Client, axis: Any, keepdims: bool) -> None:
    x, f = normal(7, 300, 5), norm(k)
    want = exact(x, axis=axis, keepdims=keepdims)
    shape = {"axis": axis, "keepdims": keepdims}
    for result in (f(x, **shape), f(k.array(x), **shape), norm(k, axis=axis)(x, keepdims=keepdims)):
        assert result.dtype == numpy.float32 and result.shape == want.shape and numpy.allclose(result, want, rtol=1e-5)
    out = k.empty((*want.shape, 2))[..., 1]
    assert f(x, axis=axis, keepdims=keepdims, out=out) is out and numpy.allclose(out, want, rtol=1e-5)
    assert numpy.allclose(f.interpret(x.T, axis=0), exact(x.T, axis=0), rtol=1e-5)


@pytest.mark.parametrize("shape, axis", [((20_000,), None), ((3, 9_000), 1), ((3_000, 40), 0), ((5, 2_000), None), ((9_000, 2), 0)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_in_parts(k: kops.Client, daemon: FakeDaemon, shape: tuple[int, ...], axis: Any, dtype: str) -> None:
    x, f = normal(*shape, dtype=dtype), norm(k)
    first, second = f(x, axis=axis), f(x, axis=axis)
    assert daemon.count("sequence") == 2, "two kernels in one request"
    assert first.dtype == dtype and numpy.allclose(first, exact(x, axis=axis), rtol=1e-5 if dtype == "float32" else 1e-3)
    assert numpy.array_equal(first, second)
    result, timings = f(x, axis=axis, timing=True)
    assert numpy.array_equal(result, first) and isinstance(timings, kops.Timings)
    assert numpy.array_equal(f.submit(x, axis=axis).result(), first)
    with pytest.raises(kops.Unsupported, match="record it in a program"):
        f.profile(x, axis=axis)
    shared = k.array(x)
    with k.program() as p:
        y = f(shared, axis=axis)
        z = k.add(y, y)
    p.run()
    assert numpy.array_equal(y, first) and numpy.allclose(z, 2 * first)


def test_nothing_is_reduced_to_the_identity(k: kops.Client) -> None:
    f = k.reduce("x", "a < b ? b : a", identity=float("-inf"), name="largest")
    x = normal(0, 3)
    assert (f(x, axis=0) == float("-inf")).all() and f(x, axis=0).shape == (3,)
    assert f(x, axis=1).shape == (0,) and f(x) == float("-inf") and f(x, keepdims=True).shape == (1, 1)
    assert f(normal(0, 3), axis=0, keepdims=True).shape == (1, 3)
    y = normal(9, 70)
    assert numpy.array_equal(f(y, axis=1), y.max(1)) and numpy.array_equal(f(y[0, 0]), y[0, 0])


def test_the_full_form_of_a_reduction(k: kops.Client, daemon: FakeDaemon) -> None:
    dot = k.reduce(
        "x * y * scale", "a + b", "a / n", 0, inputs="T x, U y, float scale", output="float out", accumulate="double", name="dot",
        prelude="#define UNUSED 1",
    )  # fmt: skip
    x, y = normal(6, 500), normal(500, dtype="float64")
    result = dot(x, y, 2, axis=1)
    assert result.dtype == numpy.float32 and numpy.allclose(result, 2 * (x * y).mean(1), rtol=1e-5) and "-> f32 out" in repr(dot)
    whole = k.reduce("x", "a + b", identity=0, inputs="T x", output="int64 out", name="count")
    bits = normal(3, 700) > 0
    assert numpy.array_equal(whole(bits, axis=1), bits.sum(1)) and whole(bits, axis=1).dtype == numpy.int64
    every = k.reduce("x > 0", "a && b", identity=True, inputs="T x", output="bool out")
    assert every(numpy.ones(5, "float32")) and not every(numpy.float32([1, -1]))
    assert numpy.array_equal(dot(x, y[None], 2, axis=-1), result)
    with k.sequence() as s:
        one = dot(x, y, 2, axis=1)
        two = s.launch(whole, bits, axis=0)
    assert numpy.array_equal(one, result) and numpy.array_equal(two, bits.sum(0))
    assert dot.profile(x, y, 2, axis=1, repeat=8, conditions=False).op == "dot_kernel"

    async def main() -> Any:
        async with kops.connect_async(daemon.path) as other:
            f = other.reduce("x", "a + b", identity=0)
            return await asyncio.gather(f(x, axis=0), f(normal(9_000) * 0, timing=True))

    sums, (nothing, timings) = asyncio.run(main())
    assert numpy.allclose(sums, x.sum(0), atol=1e-4) and nothing == 0 and isinstance(timings, kops.Timings)


def test_reductions_that_are_refused(k: kops.Client, daemon: FakeDaemon) -> None:
    x, f = normal(4, 5), k.reduce("x + y", "a + b", identity=0)
    for call, kind, message in (
        (lambda: f(x, x, axis=2), kops.BadArgument, "axis=2 for operands of 2 dimensions"),
        (lambda: f(x, x, axis=(0, -2)), kops.BadArgument, "axis="),
        (lambda: f(x, x, axis="x"), kops.BadArgument, "axis must be None"),
        (lambda: f(x), kops.BadArgument, "takes 2 operands"),
        (lambda: f(x, normal(3)), kops.ShapeMismatch, "broadcast"),
        (lambda: f(x, x, axis=0, out=normal(4)), kops.ShapeMismatch, r"out has shape \(5,\), but out= \(4,\)"),
        (lambda: k.reduce("x", "a + b"), kops.BadArgument, "identity must be the number that changes nothing"),
        (lambda: k.reduce("1", "a + b", identity=0), kops.BadArgument, "names no operand"),
        (lambda: k.reduce("x", "a + b", identity=0, output="T p, T q"), kops.BadArgument, "one output"),
        (lambda: k.reduce("x", "a + b", identity=0, output="T x"), kops.BadArgument, "input and the output"),
        (lambda: k.reduce("x", "a + b", identity=0, accumulate="thing"), kops.BadArgument, "no type"),
    ):  # fmt: skip
        with pytest.raises(kind, match=message):
            call()
    with pytest.raises(kops.interpret.InterpretError, match="reduce of sum:1:.*nothing"):
        k.reduce("x", "a + nothing(b)", identity=0, name="sum").interpret(x)
    assert not daemon.count("launch") and not daemon.count("sequence")


def test_how_numbers_are_divided() -> None:
    for results, length, neighbours in (
        (1, 10**9, False), (1, 4096, False), (1000, 10**6, False), (32, 10**9, True), (10**6, 3, False), (50, 0, True),
    ):  # fmt: skip
        made = _reduction.split(results, length, neighbours)
        assert made.parts * made.chunk >= length > (made.parts - 1) * made.chunk or not length
        assert 1 <= made.parts < 65536 and made.threads == (length <= 32 or neighbours)
    assert _reduction.split(1, 10**9, False).parts >= 1000 and _reduction.split(10**6, 1000, False).parts == 1
