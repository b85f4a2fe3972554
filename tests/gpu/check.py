"""Compares results on the GPU with a float64 reference, by the tolerances that the op declarations state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import kops

OPS = Path(__file__).resolve().parents[2] / "proto" / "ops"
NAMES = {"torch.float32": "f32", "torch.float64": "f64", "torch.float16": "f16", "torch.bfloat16": "bf16"}  # of results
DTYPES = ("float32", "float64", "float16", "bfloat16")
SPECIAL_VARIANTS = ("skinny", "small", "hopper")


def random(torch: Any, *shape: int, dtype: str = "float32") -> Any:
    return torch.randn(shape, device="cuda").to(getattr(torch, dtype))


def nothing(torch: Any, *shape: int) -> Any:
    """What is not written shows."""
    return torch.full(shape, float("nan"), device="cuda")


@cache
def tolerance(op: str, dtype: str, precision: str = "highest") -> dict[str, float]:
    declared = json.loads((OPS / f"{op}.json").read_text(encoding="utf-8"))
    found = declared.get(f"tolerance_{precision}", {}).get(dtype)
    return dict(found or declared["tolerance"][dtype])


def variants(client: Any, op: str) -> list[str]:
    """The kernels that the first GPU has for it."""
    gpu = next(device for device in client.devices if device.backend == "cuda")
    return list(client.ops[op].variants[gpu.uuid])


def gemm_variants(client: Any) -> list[str]:
    """Those for every product; SPECIAL_VARIANTS are for some."""
    return [variant for variant in variants(client, "gemm") if variant not in SPECIAL_VARIANTS]


@contextmanager
def aside(torch: Any) -> Iterator[Any]:
    """A stream that is busy for a while, behind the current one; it is waited for in the end."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        yield stream
    stream.synchronize()


def gemm_by(client: Any, variant: str, a: Any, b: Any, **how: Any) -> Any:
    """The product by that kernel, or None where it does not take this one; `tiled` and `cublaslt` take all. Without `blocking` a refusal
    would come when the result is looked at."""
    try:
        return client.gemm(a, b, variant=variant, blocking=True, **how)
    except kops.InvalidArgument:
        assert variant not in ("tiled", "cublaslt")
        return None


def assert_right(op: str, got: Any, reference: Any, scale: Any = None, precision: str = "highest") -> None:
    """`reference` in float64; `scale` is the sum of the terms' absolute values, element by element (gemm)."""
    import torch

    assert got.shape == reference.shape, f"{tuple(got.shape)} instead of {tuple(reference.shape)}"
    allowed = tolerance(op, NAMES[str(got.dtype)], precision)
    bound = allowed.get("rtol", 0.0) * reference.abs() + allowed.get("atol", 0.0)
    if scale is not None:
        bound += allowed.get("scaled", 0.0) * scale
    off = (got.double() - reference).abs()
    # NaN is never right here: no test puts one in.
    wrong = ~(off <= bound)
    if bool(wrong.any()):
        at = int(torch.nonzero(wrong.flatten())[0])
        raise AssertionError(
            f"{op}, {got.dtype} {tuple(got.shape)}: {int(wrong.sum())} of {wrong.numel()} elements are wrong; the first, {at}: "
            f"{got.flatten()[at].item()} instead of {reference.flatten()[at].item()}"
        )


def assert_add(got: Any, a: Any, b: Any) -> None:
    assert_right("add", got, a.double() + b.double())


def assert_square(got: Any, a: Any) -> None:
    assert_right("square", got, a.double() * a.double())


def assert_gemm(got: Any, a: Any, b: Any, precision: str = "highest") -> None:
    a, b = a.double(), b.double()
    assert_right("gemm", got, a @ b, a.abs() @ b.abs(), precision)
