"""What lies in outputs and scratch before a solution runs: other rubbish each time."""

from __future__ import annotations

from typing import Any

from .._base.needs_numpy import numpy
from ._bind import Plan
from ._values import bits_dtype

# NaNs whose other bits are drawn: all exponent bits and the quiet bit.
_NAN = {
    "f16": (0x7E00, 0x01FF, "u2"), "bf16": (0x7FC0, 0x003F, "u2"), "f32": (0x7FC00000, 0x003FFFFF, "u4"),
    "f64": (0x7FF8 << 48, (1 << 51) - 1, "u8"),
}  # fmt: skip


def poison(dtype: str, shape: tuple[int, ...], rng: Any, nan: bool) -> Any:
    """An array of such elements: NaNs, or random bytes."""
    if nan and dtype in _NAN:
        base, free, unsigned = _NAN[dtype]
        made = rng.integers(1, free, shape, numpy.dtype(unsigned), endpoint=True)
        return (made | numpy.array(base, unsigned)).astype(unsigned).view(bits_dtype(dtype))
    size = bits_dtype(dtype).itemsize
    count = 1
    for n in shape:
        count *= n
    low = 2 if dtype == "bool" else 0  # no bool has that
    return rng.integers(low, 256, count * size, numpy.uint8).view(bits_dtype(dtype)).reshape(shape)


def poisons_of(plan: Plan, seed: int) -> dict[str, Any]:
    rng = numpy.random.default_rng(seed)
    nan = bool(seed & 1)
    return {area.name: poison(area.dtype, area.shape, rng, nan) for area in plan.areas.values() if area.role != "input"}
