"""Reductions: what is generated is computed by the interpreter, behind a daemon that the tests play."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

import kops
import numpy
import pytest
from fake_daemon import FakeDaemon
from kops._source import reduction as _reduction
from which import compiled_only

pytestmark = [
    compiled_only, pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="the interpreter needs a compiler"),
]  # fmt: skip


def normal(*shape: int, dtype: str = "float32") -> Any:
    return (numpy.random.default_rng().standard_normal(shape) * 4).astype(dtype)


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


def test_the_full_form(k: kops.Client, daemon: FakeDaemon) -> None:
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


def test_what_is_refused(k: kops.Client, daemon: FakeDaemon) -> None:
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
