"""scaled_gemm: products of 8-bit floats, by every kernel of the daemon and in this process, against float64 and torch._scaled_mm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kops
import pytest
from check import assert_right, random, variants

NAMES = ("float8_e4m3fn", "float8_e5m2")
PAIRS = [(a, b) for a in NAMES for b in NAMES]
OUTS = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
SHAPES = ((256, 256, 256), (515, 256, 128), (1, 512, 4096), (16, 4096, 64), (130, 96, 259), (1024, 768, 8192), (3, 5, 1))


def reference(a: Any, b: Any, scale_a: Any, scale_b: Any) -> tuple[Any, Any]:
    """The result in float64, and the sum of the terms' absolute values."""
    a, b, scale = a.double(), b.double(), scale_a.double() * scale_b.double()
    return scale * (a @ b), scale.abs() * (a.abs() @ b.abs())


def scales(torch: Any, m: int, n: int) -> Iterator[tuple[Any, Any]]:
    """Numbers, vectors of both, and what cuBLASLt has not."""
    rows, columns = torch.rand(m, 1, device="cuda") + 0.5, torch.rand(1, n, device="cuda") + 0.5
    yield rows[0, 0].clone(), columns[0, :1].clone()
    yield rows, columns
    yield rows, columns[0, 0].clone()
    yield torch.rand(2 * m, 1, device="cuda")[::2], columns.flatten()


@pytest.mark.parametrize("precision", ["highest", "high", "medium"])
@pytest.mark.parametrize(("of_a", "of_b"), PAIRS)
def test_every_variant(torch: Any, k: Any, of_a: str, of_b: str, precision: str) -> None:
    """Every kernel that takes the product is right, and so is the one that is chosen."""
    ran = set()
    for m, n, depth in SHAPES:
        a, b = random(torch, m, depth, dtype=of_a), random(torch, n, depth, dtype=of_b).t()
        for scale_a, scale_b in scales(torch, m, n):
            exact, terms = reference(a, b, scale_a, scale_b)
            for short, long in OUTS.items():
                for variant in (*variants(k, "scaled_gemm"), None):
                    out = torch.full((m, n), torch.nan, dtype=getattr(torch, long), device="cuda")
                    try:
                        k.scaled_gemm(a, b, scale_a, scale_b, out=out, variant=variant, precision=precision, blocking=True)
                    except (kops.InvalidArgument, kops.Unsupported):
                        assert variant == "cublaslt"
                        continue
                    assert_right("scaled_gemm", out, exact, terms, precision)
                    ran.add(variant)
                assert k.scaled_gemm(a, b, scale_a, scale_b, out_dtype=short).dtype is getattr(torch, long)
    assert "tiled" in ran
    f8 = torch.cuda.get_device_capability() >= (8, 9)
    if "cublaslt" in variants(k, "scaled_gemm") and f8 and precision != "highest" and (of_a, of_b) != (NAMES[1], NAMES[1]):
        assert "cublaslt" in ran


def test_one_plan_with_many_scales(torch: Any, k: Any) -> None:
    """cuBLASLt's descriptors are kept, and have the scales' addresses."""
    a, b = random(torch, 256, 128, dtype=NAMES[0]), random(torch, 512, 128, dtype=NAMES[0]).t()
    given = [(torch.rand((), device="cuda"), torch.rand((), device="cuda")) for _ in range(40)]
    given += [(torch.rand(256, 1, device="cuda"), torch.rand(512, device="cuda")) for _ in range(40)]
    results = [k.scaled_gemm(a, b, *pair) for pair in given]
    for pair, got in zip(given, results):
        assert_right("scaled_gemm", got, *reference(a, b, *pair), "high")


def test_scales_are_read_in_the_streams_order(torch: Any, k: Any) -> None:
    a, b = random(torch, 64, 128, dtype=NAMES[0]), random(torch, 96, 128, dtype=NAMES[0]).t()
    scale, one = torch.zeros((), device="cuda"), torch.ones((), device="cuda")
    torch.cuda._sleep(10_000_000)
    scale.fill_(3.0)
    got = k.scaled_gemm(a, b, scale, one)
    scale.zero_()
    assert_right("scaled_gemm", got, *reference(a, b, 3 * one, one), "high")


def test_in_graphs_and_compiled(torch: Any, k: Any) -> None:
    import kops.torch  # noqa: F401

    a, b = random(torch, 64, 128, dtype=NAMES[0]), random(torch, 96, 128, dtype=NAMES[1]).t()
    scale_a, scale_b = torch.rand(64, 1, device="cuda"), torch.rand(96, device="cuda")
    compiled = torch.compile(lambda *given: torch.ops.kops.scaled_gemm(*given) * 2, fullgraph=True)  # which rounds nothing
    exact, terms = reference(a, b, scale_a, scale_b)
    assert_right("scaled_gemm", compiled(a, b, scale_a, scale_b), exact * 2, terms * 2, "high")
    k.scaled_gemm(a, b, scale_a, scale_b, where="here")  # its kernel is there before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = torch.ops.kops.scaled_gemm(a, b, scale_a, scale_b)
    got.zero_()
    graph.replay()
    assert_right("scaled_gemm", got, exact, terms, "high")


def test_it_is_tuned(torch: Any, k: Any) -> None:
    """The choice among cuBLASLt's algorithms and our kernel is measured, and is right."""
    a, b = random(torch, 512, 512, dtype=NAMES[0]), random(torch, 512, 512, dtype=NAMES[0]).t()
    one = torch.ones((), device="cuda")
    if "cublaslt" not in variants(k, "scaled_gemm"):
        pytest.skip("no cuBLASLt: there is nothing to choose")
    try:
        print(k.tune("scaled_gemm", a, b, one, one))
    except kops.Unsupported as error:
        pytest.skip(str(error))
    assert_right("scaled_gemm", k.scaled_gemm(a, b, one, one), *reference(a, b, one, one), "high")
