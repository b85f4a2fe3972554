"""What lies in outputs and scratch before a solution runs: other rubbish each time."""

from __future__ import annotations

from typing import Any

from .._companions import numpy
from ._bind import Plan
from ._values import bits_dtype

PERIOD = 65_521  # elements after which the rubbish repeats: a prime, so that no layout meets it

# NaNs whose other bits are drawn: all exponent bits and the quiet bit.
NANS = {
    "f16": (0x7E00, 0x01FF, "u2"), "bf16": (0x7FC0, 0x003F, "u2"), "f32": (0x7FC00000, 0x003FFFFF, "u4"),
    "f64": (0x7FF8 << 48, (1 << 51) - 1, "u8"),
}  # fmt: skip


def _period(dtype: str, count: int, rng: Any, nan: bool) -> Any:
    """The bytes that repeat."""
    if nan and dtype in NANS:
        base, free, unsigned = NANS[dtype]
        made = rng.integers(1, free, min(count, PERIOD), numpy.dtype(unsigned), endpoint=True)
        return (made | numpy.array(base, unsigned)).astype(unsigned).view(numpy.uint8)
    low = 2 if dtype == "bool" else 0  # no bool has that
    return rng.integers(low, 256, min(count, PERIOD) * bits_dtype(dtype).itemsize, numpy.uint8)


def fill(target: Any, dtype: str, rng: Any, nan: bool) -> None:
    """Writes such elements to an array of bytes: NaNs, or random bytes."""
    if not target.size:
        return
    period = _period(dtype, target.size // bits_dtype(dtype).itemsize, rng, nan)
    whole = target.size // period.size * period.size
    target[:whole].reshape(-1, period.size)[:] = period
    target[whole:] = period[: target.size - whole]


def poison(dtype: str, shape: tuple[int, ...], rng: Any, nan: bool) -> Any:
    """An array of such elements."""
    made = numpy.empty(shape, bits_dtype(dtype))
    fill(made.reshape(-1).view(numpy.uint8), dtype, rng, nan)
    return made


def poisons_of(plan: Plan, seed: int) -> dict[str, Any]:
    rng = numpy.random.default_rng(seed)
    nan = bool(seed & 1)
    return {area.name: poison(area.dtype, area.shape, rng, nan) for area in plan.areas.values() if area.role != "input"}
