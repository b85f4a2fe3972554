"""linear: products with a bias and an activation, by every kernel of the daemon and in this process, against float64."""

from __future__ import annotations

import math
from typing import Any

import kops
import pytest
from check import DTYPES, assert_right, variants

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh")


def reference(torch: Any, a: Any, b: Any, bias: Any, activation: str, alpha: float = 1.0) -> tuple[Any, Any]:
    """The result in float64, and the sum of the terms' absolute values."""
    a, b, bias = a.double(), b.double(), bias.double()
    sums = alpha * (a @ b) + bias
    if activation == "relu":
        sums = sums.relu()
    elif activation == "gelu":
        sums = 0.5 * sums * (1 + torch.erf(sums / math.sqrt(2)))
    elif activation == "gelu_tanh":
        sums = 0.5 * sums * (1 + torch.tanh(math.sqrt(2 / math.pi) * (sums + 0.044715 * sums**3)))
    return sums, abs(alpha) * (a.abs() @ b.abs()) + bias.abs()


def random(torch: Any, *shape: int, dtype: str, scale: float = 1.0) -> Any:
    return (scale * torch.randn(shape, device="cuda")).to(getattr(torch, dtype))


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_variant(torch: Any, k: Any, dtype: str, activation: str) -> None:
    """Sums of about 1, where the activations are curved. cuBLASLt takes what its epilogues have."""
    ran = set()
    for m, depth, n in (515, 259, 130), (1024, 2048, 768), (16, 4096, 512), (1, 65, 1000), (128, 64, 8):
        a, b = random(torch, m, depth, dtype=dtype), random(torch, depth, n, dtype=dtype, scale=depth**-0.5)
        bias = random(torch, n, dtype=dtype)
        exact, terms = reference(torch, a, b, bias, activation, 1.5)
        for variant in variants(k, "linear"):
            for given, attrs in (((a, b), {}), ((a.t().contiguous(), b.t().contiguous()), {"trans_a": True, "trans_b": True})):
                out = torch.full((m, n), torch.nan, dtype=a.dtype, device="cuda")
                try:
                    k.linear(*given, bias, out=out, activation=activation, alpha=1.5, variant=variant, blocking=True, **attrs)
                except (kops.InvalidArgument, kops.Unsupported):
                    continue
                assert_right("linear", out, exact, terms)
                ran.add(variant)
        out = torch.full((m, n), torch.nan, dtype=a.dtype, device="cuda")
        k.linear(a, b, bias, out=out, activation=activation, alpha=1.5)
        assert_right("linear", out, exact, terms)
    assert {"tiled", *({"skinny"} if dtype != "float64" else ())} <= ran
    if "hopper" in variants(k, "linear") and dtype in ("float16", "bfloat16"):
        assert "hopper" in ran
    if "activated" in variants(k, "linear") and dtype in ("float32", "float64") and activation == "gelu":
        assert "activated" in ran
    if "cublaslt" in variants(k, "linear") and activation != "gelu" and dtype in ("float16", "bfloat16"):
        assert "cublaslt" in ran


@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts(torch: Any, k: Any, dtype: str) -> None:
    """The larger ones with rows of whole 16 bytes, and with others, are for the kernels of compute capability 9.0."""
    for where in ("daemon", "here"):
        for shape, batch in (((96, 80), ()), ((33, 47), ()), ((40, 24), (3, 2)), ((264, 520), ()), ((130, 264), (3,))):
            m, n = shape
            a, b = random(torch, *batch, m, 56, dtype=dtype), random(torch, 56, n, dtype=dtype, scale=0.13)
            for bias in (
                random(torch, n, dtype=dtype), random(torch, m, 1, dtype=dtype), random(torch, n, m, dtype=dtype).t(),
                random(torch, dtype=dtype), random(torch, 2 * n, dtype=dtype)[::2], random(torch, n + 1, dtype=dtype)[1:],
            ):  # fmt: skip
                for activation in ("gelu", "gelu_tanh"):
                    for turned in (False, True):
                        out = torch.full((*batch, n, m) if turned else (*batch, m, n), torch.nan, dtype=a.dtype, device="cuda")
                        target = out.mT if turned else out
                        k.linear(a, b, bias, out=target, activation=activation, where=where)
                        exact, terms = reference(torch, a, b, bias, activation)
                        assert_right("linear", target, exact, terms)
    a, b = random(torch, 3, 1, 20, 30, dtype=dtype), random(torch, 2, 30, 10, dtype=dtype)
    bias = random(torch, 2, 1, 10, dtype=dtype)
    assert_right("linear", k.linear(a, b, bias, activation="relu"), *reference(torch, a, b, bias, "relu"))


def test_one_plan_with_many_biases(torch: Any, k: Any) -> None:
    """cuBLASLt's descriptors are kept, and have the bias's address."""
    a, b = random(torch, 256, 128, dtype="bfloat16"), random(torch, 128, 512, dtype="bfloat16")
    biases = [random(torch, 512, dtype="bfloat16") for _ in range(40)]
    results = [k.linear(a, b, bias, activation="relu") for bias in biases]
    for bias, got in zip(biases, results):
        assert_right("linear", got, *reference(torch, a, b, bias, "relu"))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_stays(torch: Any, k: Any, activation: str) -> None:
    a, b = torch.ones(64, 64, device="cuda").bfloat16(), torch.ones(64, 64, device="cuda").bfloat16()
    bias = torch.zeros(64, device="cuda").bfloat16()
    bias[3] = torch.nan
    for variant in variants(k, "linear"):
        try:
            got = k.linear(a, b, bias, activation=activation, variant=variant, blocking=True)
        except (kops.InvalidArgument, kops.Unsupported):
            continue
        assert got[:, 3].isnan().all() and not got[:, :3].isnan().any(), variant


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_all_of_the_curve(torch: Any, k: Any, dtype: str, activation: str) -> None:
    """Sums from far below, where the result is nearly 0, to far above; nothing is added up, so one rounding is all there is."""
    curve = torch.linspace(-14, 14, 1 << 14, device="cuda").to(getattr(torch, dtype))
    a, b = torch.zeros(128, 64, dtype=curve.dtype, device="cuda"), torch.zeros(64, len(curve), dtype=curve.dtype, device="cuda")
    exact, _ = reference(torch, a, b, curve, activation)
    for variant in ("tiled", "hopper"):
        if variant not in variants(k, "linear"):
            continue
        got = k.linear(a, b, curve, activation=activation, variant=variant, blocking=True).double()
        half = 2.0 ** (-8 if dtype == "bfloat16" else -11)
        assert ((got - exact).abs() <= exact.abs() * half * 1.05 + 1e-6).all(), variant
