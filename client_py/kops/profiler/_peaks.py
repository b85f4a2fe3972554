"""What a device can do, measured with the daemon's own ops: the roofs of the roofline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._base.errors import KopsError
from .._base.results import Device
from .._clients.client import Client

DTYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "bf16": "float32"}  # and what values are made in
HOST, GPU = (1 << 24, 1024), (1 << 27, 8192)  # elements of a vector beyond every cache, side of a matrix
ROUNDS = 10


@dataclass(frozen=True)
class Peaks:
    """The most that was reached on a device: 10^9 bytes a second by `add` of f32 vectors, 10^9 floating-point operations a second by
    `gemm`, by dtype. What the hardware could do in theory is more."""

    device: str
    name: str
    gb_s: float
    gflop_s: Mapping[str, float] = field(default_factory=dict)


def measure(client: Client, device: Device) -> Peaks:
    """Some seconds of work on the device, on copies of host memory. Needs NumPy."""
    found = ((dtype, gflop_s(client, device, dtype)) for dtype in DTYPES)
    return Peaks(device.uuid, device.name, gb_s(client, device), {dtype: top for dtype, top in found if top is not None})


def gb_s(client: Client, device: Device) -> float:
    """The roof of memory."""
    import numpy

    vectors = [numpy.ones((HOST if device.backend == "host" else GPU)[0], "float32") for _ in range(3)]
    best = _best(client, "add", vectors, device)
    return float(best.bytes / best.min / 1e3)


def gflop_s(client: Client, device: Device, dtype: str) -> float | None:
    """The roof of arithmetic with a dtype, by its name on the wire. None: the daemon's `gemm` has it not, or nothing counts its work."""
    import numpy

    from .._tensors.numpy import Bfloat16Bits

    if dtype not in DTYPES or dtype not in client.ops["gemm"].dtypes:
        return None
    side = (HOST if device.backend == "host" else GPU)[1]
    # Zeros would take less power, and so run at higher clocks.
    a, b = (numpy.random.default_rng(seed).standard_normal((side, side)).astype(DTYPES[dtype]) for seed in (1, 2))
    operands = [a, b, numpy.empty_like(a)]
    made = _best(client, "gemm", [Bfloat16Bits.of(one) for one in operands] if dtype == "bf16" else operands, device)
    return made.operations / made.min / 1e3 if made.gflop_s is not None and made.min else None


def _best(client: Client, op: str, operands: list[Any], device: Device) -> Any:
    *inputs, out = (client.array(operand).view(type(operand)) for operand in operands)
    made = client.profile(op, *inputs, out=out, device=device, warmup=2, repeat=ROUNDS, conditions=False)
    if not made.min:
        raise KopsError(f"{op} on {device.uuid} was not timed")
    return made
