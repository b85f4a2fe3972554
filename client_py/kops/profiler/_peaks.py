"""What a device can do, measured with the daemon's own ops: the roofs of the roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

from .. import Client, Device, KopsError

DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "float32"}  # of gemm, and what values are made in
DTYPES_OF_8_BITS = ("f8_e4m3", "f8_e5m2")  # of scaled_gemm's `a`; tensor cores take e5m2 with e4m3, not with itself
HOST, GPU = (1 << 24, 1024), (1 << 27, 8192)  # elements of a vector beyond every cache, side of a matrix
ROUNDS = 10


@dataclass(frozen=True)
class Peaks:
    """The most that was reached on a device: 10^9 bytes a second by `add` of f32 vectors, 10^9 floating-point operations a second by
    `gemm`, with 8-bit floats by `scaled_gemm`, by dtype. What the hardware could do in theory is more."""

    device: str
    name: str
    gb_s: float
    gflop_s: Mapping[str, float] = field(default_factory=dict)


def measure(client: Client, device: Device) -> Peaks:
    """Some seconds of work on the device, on copies of host memory. Needs NumPy."""
    found = ((dtype, gflop_s(client, device, dtype)) for dtype in (*DTYPES, *DTYPES_OF_8_BITS))
    return Peaks(device.uuid, device.name, gb_s(client, device), {dtype: top for dtype, top in found if top is not None})


def is_of_peaks(op: str, shapes: Sequence[Sequence[int]]) -> bool:
    """Whether a row of the statistics has what is run to measure: work of exactly these sizes is at the roof by definition."""
    size = tuple(shapes[0]) if shapes else ()
    if op == "add":
        return size in {(vector,) for vector, _ in (HOST, GPU)}
    return op in ("gemm", "scaled_gemm") and size in {(side, side) for _, side in (HOST, GPU)}


def gb_s(client: Client, device: Device) -> float:
    """The roof of memory."""
    from .._companions import numpy

    vectors = [numpy.ones((HOST if device.backend == "host" else GPU)[0], "float32") for _ in range(3)]
    best = _best(client, "add", vectors, device)
    return float(best.bytes / best.min / 1e3)


def gflop_s(client: Client, device: Device, dtype: str) -> float | None:
    """The roof of arithmetic with a dtype, by its name on the wire. None: the daemon's products have it not, or nothing counts their
    work."""
    op = "scaled_gemm" if dtype in DTYPES_OF_8_BITS else "gemm"
    if dtype not in (*DTYPES, *DTYPES_OF_8_BITS) or op not in client.ops or dtype not in client.ops[op].dtypes:
        return None
    side = (HOST if device.backend == "host" else GPU)[1]
    operands, attrs = _products_of_8_bits(dtype, side) if op == "scaled_gemm" else (_products(dtype, side), {})
    made = _best(client, op, operands, device, **attrs)
    return made.operations / made.min / 1e3 if made.gflop_s is not None and made.min else None


# Of normal numbers: zeros would take less power, and so run at higher clocks.


def _products(dtype: str, side: int) -> list[Any]:
    from .._companions import bits_of, numpy

    a, b = (numpy.random.default_rng(seed).standard_normal((side, side)).astype(DTYPES[dtype]) for seed in (1, 2))
    operands = [a, b, numpy.empty_like(a)]
    return [bits_of(one, dtype) for one in operands] if dtype == "bf16" else operands


def _products_of_8_bits(dtype: str, side: int) -> tuple[list[Any], dict[str, Any]]:
    from .._companions import BITS, bits_of, numpy

    # as many numbers as there are bytes, each as probable as the others
    normal = numpy.array([NormalDist().inv_cdf((i + 0.5) / 256) for i in range(256)], "float32")

    def drawn(of: str, seed: int) -> Any:
        bytes_of = numpy.random.default_rng(seed).integers(0, 256, (side, side), "uint8")
        return bits_of(normal, of)[bytes_of].view(BITS[of])

    one = numpy.ones((), "float32")
    operands = [drawn(dtype, 1), drawn("f8_e4m3", 2), one, one, numpy.empty((side, side), "uint16").view(BITS["bf16"])]
    return operands, {"trans_b": True, "precision": "medium"}  # as tensor cores like it


def _best(client: Client, op: str, operands: list[Any], device: Device, **attrs: Any) -> Any:
    *inputs, out = (client.array(operand).view(type(operand)) for operand in operands)
    made = client.profile(op, *inputs, out=out, device=device, warmup=2, repeat=ROUNDS, conditions=False, **attrs)
    if not made.min:
        raise KopsError(f"{op} on {device.uuid} was not timed")
    return made
