"""Comparing what a solution wrote with what is right. On the CPU, in float64; integers exactly. `_compare` finds out quickly whether
something is wrong, and this file then what is."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .._companions import numpy
from ._compare import Errors, float_errors, same_bytes
from ._task import Case, Task, least_rms
from ._values import FLOATS, Tensor, numbers
from ._verdict import Worst

if TYPE_CHECKING:
    from ._draws import Draw, Expected

CLEAR = 1.25  # times what every right solution may be off that a shortcut is off, to be told from these
UNTOUCHED_BYTES = 2  # of an element from which on keeping its poison is no coincidence


def _worst(why: str, name: str, got: Any, expected: Any, far: Any, bad: Any, case: Case, number: int) -> Worst:
    """`far` orders the elements, of which those in `bad` are wrong."""
    at = int(numpy.argmax(numpy.where(bad, far, -1.0).reshape(-1)))
    index = tuple(int(i) for i in numpy.unravel_index(at, got.shape)) if got.shape else ()
    values = [one.reshape(-1)[at].item() for one in (got, expected)]
    return Worst(why, name, index, values[0], values[1], str(case), number, int(numpy.count_nonzero(bad)), int(bad.size))


def _compare_exact(expected: Expected, got: Any, rtol: float, atol: float) -> tuple[Any, Any]:
    if not rtol and not atol:
        bad = got != expected.values
        far = numpy.abs(got.astype(numpy.float64) - expected.values.astype(numpy.float64))
        return bad, numpy.where(bad, far, 0)
    far = numpy.abs(got.astype(numpy.longdouble) - expected.values.astype(numpy.longdouble))
    return far > atol + rtol * numpy.abs(expected.values.astype(numpy.longdouble)), far.astype(numpy.float64)


def _compare_floats(expected: Expected, got: Any, rtol: float, atol: float) -> tuple[Any, Any]:
    want = expected.values
    with numpy.errstate(all="ignore"):
        far = numpy.abs(got - want)
        allowed = atol + rtol * numpy.abs(want)
        finite = numpy.isfinite(want) & numpy.isfinite(got)
        bad = numpy.where(finite, far > allowed, ~((got == want) | (numpy.isnan(got) & numpy.isnan(want))))
        return bad, numpy.where(finite, far, numpy.where(bad, math.inf, 0.0))


def imprecise(task: Task, expected: Expected, errors: Errors, case: Case, number: int) -> Worst | None:
    """What is wrong with an output of which each element is within its tolerance: the root mean square of its errors is more than is
    allowed, or more elements are right by `atol` alone than roundings explain, since small elements were not computed."""
    tolerance, size = task.tolerance_of(expected.dtype), int(expected.values.size)
    allowed = tolerance.allowed_rms(expected.dtype, expected.scale, expected.noise)
    if math.isfinite(allowed):
        least = least_rms(expected.dtype, size, expected.scale, expected.noise)
        allowed = min([allowed, *(max(one / 2, least) for one in expected.shortcuts if one > CLEAR * least)])
    rms = math.sqrt(errors.squares / max(size, 1))
    if not rms <= allowed:
        return Worst("precision", expected.name, (), rms, allowed, str(case), number, 0, size)
    many = expected.noisy + tolerance.allowed_by_atol(expected.dtype, size)
    return None if errors.by_atol <= many else Worst("small", expected.name, (), errors.by_atol, many, str(case), number, 0, size)


def compare(task: Task, expected: Expected, got: Tensor, case: Case, number: int) -> Worst | None:
    """What is wrong by its value, or by the precision of all. `got`: an output, or what may be one, in float64."""
    size = got.data.size
    if not size:
        return None
    tolerance = task.tolerance_of(expected.dtype)
    rtol, atol = tolerance.bounds(expected.dtype, expected.scale)
    if expected.dtype not in FLOATS:
        if not rtol and not atol and same_bytes(got.data, expected.values):
            return None
        bad, far = _compare_exact(expected, got.data, rtol, atol)
        return _worst("value", expected.name, got.data, expected.values, far, bad, case, number) if bad.any() else None
    errors = float_errors(got, expected.values, rtol, atol, tolerance.least(expected.dtype, expected.scale))
    if errors.wrong:
        wide = numbers(got)
        bad, far = _compare_floats(expected, wide, rtol, atol)
        if bad.any():
            return _worst("value", expected.name, wide, expected.values, far, bad, case, number)
    return imprecise(task, expected, errors, case, number)


def _untouched(got: Tensor, poison: Any, expected: Expected, worst: Worst) -> Worst:
    """The same, if the element has still the bits that were there before: a better reason."""
    if worst.why != "value":
        return worst
    same = got.data.view(numpy.uint8).reshape(-1, got.data.itemsize) == poison.view(numpy.uint8).reshape(-1, got.data.itemsize)
    kept = same.all(axis=1)
    at = int(numpy.ravel_multi_index(worst.index, got.shape)) if got.shape else 0
    if not kept[at] or (got.data.itemsize < UNTOUCHED_BYTES and not kept.all()):
        return worst
    return replace(worst, why="untouched", wrong=int(numpy.count_nonzero(kept)))


def check_outputs(task: Task, draw: Draw, got: dict[str, Tensor], poisons: dict[str, Any]) -> Worst | None:
    """The first output that is wrong."""
    for expected in draw.expected:
        one = got[expected.name]
        worst = compare(task, expected, one, draw.case, draw.number)
        if worst is not None:
            return _untouched(one, poisons[expected.name], expected, worst)
    return None


def changed_input(draw: Draw, after: dict[str, Any]) -> Worst | None:
    """The first input whose bits are not what they were; `after` has them by name."""
    for name, tensor in draw.tensors.items():
        before, now = tensor.data, after[name]
        if same_bytes(before, now):
            continue
        bad = before.view(numpy.uint8).reshape(-1, before.itemsize) != now.view(numpy.uint8).reshape(-1, before.itemsize)
        where = bad.any(axis=1)
        at = int(numpy.argmax(where))
        index = tuple(int(i) for i in numpy.unravel_index(at, before.shape)) if before.shape else ()
        values = [numbers(Tensor(tensor.dtype, one)).reshape(-1)[at].item() for one in (now, before)]
        count = int(numpy.count_nonzero(where))
        return Worst("input_changed", name, index, values[0], values[1], str(draw.case), draw.number, count, int(before.size))
    return None
