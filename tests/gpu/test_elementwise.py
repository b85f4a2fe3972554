"""Elementwise kernels on a GPU, against torch."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from check import aside

pytestmark = pytest.mark.usefixtures("kernels_are_served")
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "uint8", "int64")


def values(torch: Any, *shape: int, dtype: str = "float32") -> Any:
    return (torch.randn(shape, device="cuda") * 4).abs().to(getattr(torch, dtype))


def wide(torch: Any, x: Any) -> Any:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


@pytest.mark.parametrize("dtype", DTYPES)
def test_flat_loops(torch: Any, k: Any, dtype: str) -> None:
    f = k.elementwise("x * y + x")
    for n in (0, 1, 15, 4096, 1_000_003):
        x, y = values(torch, n + 1, dtype=dtype), values(torch, n + 1, dtype=dtype)
        for a, b in ((x[:n], y[:n]), (x[1:], y[1:]), (x[1:], y[:n])):
            want = (wide(torch, a) * wide(torch, b) + wide(torch, a)).to(a.dtype)
            result = f(a, b)
            assert result.dtype is a.dtype and torch.allclose(result, want, rtol=1e-2 if a.dtype is torch.bfloat16 else 1e-3)


def test_broadcast_and_strided(torch: Any, k: Any) -> None:
    f = k.elementwise("x - 2 * y")
    x, y = values(torch, 33, 65, 17), values(torch, 17, 65, 33)
    for a, b in (
        (x, y.permute(2, 1, 0)), (x, y[:, :, :1].permute(2, 1, 0)),
        (x[:, ::3], y[0, 0, :, None, None]), (x.permute(2, 1, 0), y[:, :1]), (x[0], 1.5),
        (x[:, :, 3].expand(4, 33, 65), y[0].T),
    ):  # fmt: skip
        want = a - 2 * b
        assert torch.allclose(f(a, b), want, rtol=1e-5, atol=1e-5)
        ground = torch.full((*want.shape, 2), 7.0, device="cuda")
        assert torch.allclose(f(a, b, out=ground[..., 1]), want, rtol=1e-5, atol=1e-5) and bool((ground[..., 0] == 7).all())


def test_more_than_32_bits_of_offsets(torch: Any, k: Any) -> None:
    big = torch.zeros((2, (1 << 31) + 8), dtype=torch.uint8, device="cuda")
    big[1, ::1 << 20] = 3
    assert torch.equal(k.elementwise("x + 1")(big[:, : 1 << 12]), big[:, : 1 << 12] + 1)
    assert int(k.elementwise("x + 1")(big)[1, 1 << 30]) == 4


def test_several_outputs_in_place_and_numbers(torch: Any, k: Any) -> None:
    f = k.elementwise("T x, T y, float alpha", "T out, bool big", "out = alpha * x + y; big = out > 1", name="axpy")
    x, y, alpha = values(torch, 1001), values(torch, 1001), random.uniform(-2, 2)
    want = alpha * x + y
    out, big = f(x, y, alpha)
    assert torch.allclose(out, want, rtol=1e-5, atol=1e-5) and torch.equal(big, out > 1)
    g = k.elementwise("x * 3 + y")
    want = x * 3 + y
    assert g(x, y, out=x) is x and torch.allclose(x, want, rtol=1e-5)
    half = y.half()
    h = k.elementwise("T x, U y", "U z", "z = x + y")
    assert torch.allclose(h(x, half), (x + half.float()).half(), rtol=1e-3)


def test_ordered_recorded_and_measured(torch: Any, k: Any) -> None:
    x, y = values(torch, 3_000_001), values(torch, 3_000_001)
    total = k.reduce("x", "a + b", identity=0, name="total")
    for f, reference in ((lambda x: k.elementwise("x * y")(x, y), lambda x: x * y), (total, lambda x: x.double().sum().float())):
        x = values(torch, 3_000_001)
        want = reference(2 * x)
        f(x)
        with aside(torch):
            x *= 2
            z = f(x)
            x.zero_()
            w = z + 1
        assert torch.allclose(w, want + 1, rtol=1e-5)
        with k.program() as p:
            made = f(x)
            v = k.add(made, 1)
        x.fill_(1)
        p.run()
        assert torch.allclose(v, reference(x) + 1, rtol=1e-5)
    x, product = values(torch, 100_003), k.elementwise("x * y")
    y = y[: x.numel()]
    with k.batch():
        outs = [product(x, y) for _ in range(50)]
    assert all(torch.equal(out, x * y) for out in outs)
    profile = product.profile(x, y, out=torch.empty_like(x), repeat=20)
    assert len(profile.samples) == 20 and profile.op == "elementwise_kernel"


def test_host_arrays(torch: Any, k: Any) -> None:
    rng = np.random.default_rng()
    x, y = rng.standard_normal((40, 30), np.float32), rng.standard_normal((30, 40), np.float32)
    for a, b in ((x, y.T), (k.array(x), k.array(y).T), (x[::-1], y.T)):
        assert np.allclose(k.elementwise("x * y + 1")(a, b), a * b + 1, rtol=1e-6, atol=1e-6)


# ---- reductions ----


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64"])
def test_reductions(torch: Any, k: Any, dtype: str) -> None:
    mean = k.reduce("x * x", "a + b", "a / n", 0, name="mean")
    for shape, axis in (
        ((1,), 0), ((1000,), 0), ((3_000_001,), 0), ((7, 300, 5), 1), ((7, 300, 5), (0, 2)), ((7, 300, 5), ()), ((100_000, 3), 1),
        ((5000, 700), 0), ((5000, 700), 1), ((40, 100_000), 1), ((2, 3, 4, 5, 6), (1, 3)), ((100_000, 64), 0),
    ):  # fmt: skip
        x = values(torch, *shape, dtype=dtype)
        for one in (x, x.permute(*range(x.dim() - 1, -1, -1))):
            want = one.double().square()
            want = want.mean(axis) if axis != () else want
            result = mean(one, axis=axis)
            if dtype == "int64":
                want = want.floor()
            assert result.dtype is x.dtype and result.shape == want.shape
            rtol, atol = {"bfloat16": (1e-2, 0.0), "float16": (2e-3, 6e-8)}.get(dtype, (1e-5, 0.0))  # a step of float16's smallest
            assert torch.allclose(result.double(), want, rtol=rtol, atol=atol)
            assert torch.equal(result, mean(one, axis=axis)), "not the same again"


def test_empty_and_shaped_reductions(torch: Any, k: Any) -> None:
    largest = k.reduce("x", "a < b ? b : a", identity="-INFINITY", name="largest")
    x = values(torch, 33, 65)
    assert torch.equal(largest(x, axis=0, keepdims=True), x.amax(0, keepdim=True)) and torch.equal(largest(x), x.max())
    empty = values(torch, 0, 3)
    assert largest(empty, axis=0).tolist() == [float("-inf")] * 3 and largest(empty, axis=1).shape == (0,)
    out = torch.zeros(33, 2, device="cuda")
    assert torch.equal(largest(x, axis=1, out=out[:, 1]), x.amax(1)) and bool((out[:, 0] == 0).all())
    dot = k.reduce("x * y", "a + b", identity=0, inputs="T x, U y", output="float out", accumulate="double", name="dot")
    y = values(torch, 65, dtype="float16")
    assert torch.allclose(dot(x, y, axis=1), x @ y.float(), rtol=1e-5)
