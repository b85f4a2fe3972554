"""Which roof is above a solution: how fast memory or arithmetic would let it be. Williams, Waterman, Patterson, "Roofline" (2009)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from .. import KopsError
from ..interpret._expressions import evaluate
from ._draws import Draw
from ._errors import TaskFault
from ._task import Task
from ._values import FLOATS


class Roof(NamedTuple):
    """`memory` and `arithmetic` are the parts of what the device can do that were reached. The larger one is of the roof that bounds."""

    memory: float | None = None
    arithmetic: float | None = None

    @property
    def part(self) -> float | None:
        parts = [part for part in self if part is not None]
        return max(parts) if parts else None

    @property
    def name(self) -> str:
        if self.part is None:
            return ""
        return "memory" if self.part == self.memory else "arithmetic"


def flops_of(task: Task, draw: Draw) -> float | None:
    """Floating-point operations of a draw's case. None: the task does not say. Raises TaskFault."""
    given = task.flops
    if isinstance(given, str):
        names = {**draw.case.numbers, **draw.numbers, **{name: tensor.shape for name, tensor in draw.tensors.items()}}
        try:
            given = evaluate(given, names, "flops")
        except KopsError as error:
            raise TaskFault(f"task {task.name}: {error}") from None
    elif callable(given):
        try:
            given = given(**draw.case)
        except Exception as error:
            raise TaskFault(f"task {task.name}: its flops raise {type(error).__name__}: {str(error)[:500]}") from None
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < math.inf:
        raise TaskFault(f"task {task.name}: its flops in the case {draw.case} are {given!r:.80}: they are a number of at least 0, or None")
    return float(given)


def dtype_of(draw: Draw) -> str:
    """In which a draw is computed: that of the inputs of floats with the most elements, else the outputs'."""
    sizes: dict[str, int] = {}
    for tensor in draw.tensors.values():
        if tensor.dtype in FLOATS:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + int(tensor.data.size)
    return max(sizes, key=lambda dtype: sizes[dtype]) if sizes else draw.expected[0].dtype


def roof_of(us: float, size: int, flops: float | None, peak_gb_s: float | None, peak_gflop_s: Mapping[str, float], dtype: str) -> Roof:
    """Of work on `size` bytes that takes so many microseconds."""
    if not us:
        return Roof()
    memory = size / us / 1e3 / peak_gb_s if peak_gb_s else None
    top = peak_gflop_s.get(dtype)
    return Roof(memory, flops / us / 1e3 / top if flops and top else None)
