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
    import numpy

    from .._tensors.numpy import Bfloat16Bits

    length, side = HOST if device.backend == "host" else GPU
    vectors = [numpy.ones(length, "float32") for _ in range(3)]
    best = _best(client, "add", vectors, device)
    compute: dict[str, float] = {}
    for dtype, name in DTYPES.items():
        if dtype not in client.ops["gemm"].dtypes:
            continue
        # Zeros would take less power, and so run at higher clocks.
        a, b = (numpy.random.default_rng(seed).standard_normal((side, side)).astype(name) for seed in (1, 2))
        operands = [a, b, numpy.empty_like(a)]
        made = _best(client, "gemm", [Bfloat16Bits.of(one) for one in operands] if dtype == "bf16" else operands, device)
        if made.gflop_s is not None and made.min:
            compute[dtype] = made.operations / made.min / 1e3
    return Peaks(device.uuid, device.name, best.bytes / best.min / 1e3, compute)


def _best(client: Client, op: str, operands: list[Any], device: Device) -> Any:
    *inputs, out = (client.array(operand).view(type(operand)) for operand in operands)
    made = client.profile(op, *inputs, out=out, device=device, warmup=2, repeat=ROUNDS, conditions=False)
    if not made.min:
        raise KopsError(f"{op} on {device.uuid} was not timed")
    return made
