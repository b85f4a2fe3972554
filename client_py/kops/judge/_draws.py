"""Draws: inputs of a case from a hidden seed, with what is right for them, and what is wrong with what a solution wrote instead. Made on
the CPU, in float64; integers are compared exactly.

A task is examined at its first draw: what its own fault is must never become a solution's."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from .._companions import numpy
from ._task import FEW, NAME, Case, Task, least_rms
from ._values import (
    FLOATS,
    NARROW,
    Errors,
    Tensor,
    as_like,
    float_errors,
    floats_of,
    is_tensor,
    numbers,
    same_bytes,
    sum_of_squares,
    tensor_of,
    without_elements,
)
from ._verdict import TaskFault, Worst

INPUTS_MAX = 32
EXCHANGES = 3  # exchanges to try, where earlier ones did not change the result
NOISY = 8  # a solution's error may be this many times the reference's
SAME = 1e-12  # fraction of the outputs' root mean square: outputs this near do not depend on the input that was changed
# Parts of the inputs to compute on: every SAMPLE-th element, or the first of HALF parts; whether it is the first part;
# the axis.
SAMPLE, HALF = 16, 2
_PARTS = [(SAMPLE, False, -1), (SAMPLE, True, -1), (SAMPLE, False, 0), (SAMPLE, True, 0), (HALF, False, -1), (HALF, False, 0)]
# Errors of results from parts of the inputs, by case: for each output of a part of SAMPLE and of HALF, relative to its
# root mean square.
_sampled: WeakKeyDictionary[Task, dict[Case, tuple[tuple[float, float], ...]]] = WeakKeyDictionary()


def new_seed() -> int:
    return secrets.randbits(63)


class Expected(NamedTuple):
    """One output. `values` are float64 where the output is of floats. `noise` is the root mean square of the error that the
    reference makes in the inputs' own precision; `scale` that of the values. `noisy`: elements of which the reference itself is off by
    what `rtol` allows, nearly. `shortcuts`: how far off results are that take less than computing, as root mean squares: a constant, a
    sixteenth of the inputs, half of them; infinite where that is right."""

    name: str
    dtype: str
    values: Any
    noise: float = 0.0
    scale: float = 0.0
    noisy: int = 0
    shortcuts: tuple[float, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.values.shape)


@dataclass(frozen=True, eq=False)
class Draw:
    """`number` tells draws of a verdict apart. `originals` are as what the generator made: frameworks, without elements, and numbers.
    `seconds`: that it took to make."""

    number: int
    case: Case
    tensors: Mapping[str, Tensor]
    numbers: Mapping[str, Any]
    originals: Mapping[str, Any]
    expected: tuple[Expected, ...]
    warning: str = ""
    seconds: float = 0.0

    @cached_property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors.values()) + sum(int(e.values.nbytes) for e in self.expected)


def _called(task: Task, what: str, function: Any, *args: Any, **keywords: Any) -> Any:
    try:
        with warnings.catch_warnings(), numpy.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return function(*args, **keywords)
    except (Exception, SystemExit) as error:
        raise TaskFault(f"task {task.name}: its {what} raises {type(error).__name__}: {str(error)[:500]}") from None


def _generated(task: Task, case: Case, seed: int) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Any]]:
    made = _called(task, "generator of inputs", task.inputs, numpy.random.default_rng(seed), **case)
    if not isinstance(made, Mapping) or not made or len(made) > INPUTS_MAX:
        raise TaskFault(f"task {task.name}: inputs(rng, …) must return a dict of 1 to {INPUTS_MAX} arrays, not {type(made).__name__}")
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    originals = dict(made)
    for name, value in made.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise TaskFault(f"task {task.name}: the names of inputs are identifiers, not {name!r:.80}")
        if name in task.outputs:
            raise TaskFault(f"task {task.name}: {name} is an input and an output: give one another name")
        if is_tensor(value):
            tensors[name] = tensor_of(value, f"task {task.name}: the input {name}")
            originals[name] = without_elements(value)
        elif isinstance(value, (bool, int, float, numpy.generic)):
            plain[name] = value.item() if isinstance(value, numpy.generic) else value
        else:
            raise TaskFault(f"task {task.name}: the input {name} is of {type(value).__name__}: use an array, a torch tensor or a number")
    if plain.keys() & case.numbers.keys():
        both = next(iter(plain.keys() & case.numbers.keys()))
        raise TaskFault(f"task {task.name}: {both} is a number of the case and of the inputs: give one another name")
    return tensors, plain, originals


def _asked(task: Task, tensors: Mapping[str, Tensor], originals: Mapping[str, Any], double: bool) -> list[Tensor]:
    """The reference's answer, on memory of its own."""
    given = {name: as_like(tensors[name], value, double) if name in tensors else value for name, value in originals.items()}
    answer = _called(task, "reference", task.reference, **given)
    values = list(answer) if isinstance(answer, (tuple, list)) else [answer]
    if len(values) != len(task.outputs):
        raise TaskFault(f"task {task.name}: its reference returns {len(values)} arrays for the outputs {', '.join(task.outputs)}")
    return [tensor_of(value, f"task {task.name}: the output {name}") for name, value in zip(task.outputs, values)]


def _wide(task: Task, tensors: Mapping[str, Tensor], originals: Mapping[str, Any], plain: list[Tensor]) -> tuple[list[Tensor], str]:
    """The reference's answer in float64 where inputs are floats; and a warning where there is no such answer."""
    if task.precision == "native" or not any(tensor.dtype in FLOATS for tensor in tensors.values()):
        return plain, ""
    try:
        made = _asked(task, tensors, originals, True)
        if [t.shape for t in made] != [t.shape for t in plain]:
            raise TaskFault(f"task {task.name}: its reference returns other shapes for float64 inputs")
        return made, ""
    except TaskFault as error:
        if task.precision == "f64":
            raise
        return plain, f'the reference does not take float64, so the precision is judged loosely (precision="native" says so): {error}'


def _rms(values: Any) -> float:
    squares = sum_of_squares(values.reshape(-1))
    if math.isfinite(squares):
        return math.sqrt(squares / values.size) if values.size else 0.0
    finite = values[numpy.isfinite(values)]
    return float(numpy.sqrt(numpy.mean(finite * finite))) if finite.size else 0.0


def _mean(values: Any) -> float:
    finite = values[numpy.isfinite(values)] if values.size and not math.isfinite(values.sum()) else values
    return float(finite.mean()) if finite.size else 0.0


def _expected(task: Task, name: str, plain: Tensor, wide: Tensor) -> Expected:
    if plain.dtype not in FLOATS:
        values = wide.data if wide.dtype == plain.dtype else wide.data.astype(plain.data.dtype)
        return Expected(name, plain.dtype, values)
    narrow = floats_of(plain)
    infinite = numpy.isinf(narrow)
    values = numpy.asarray(numbers(wide), numpy.float64, order="C")
    if infinite.any():
        values = numpy.where(infinite, narrow, values)
    with numpy.errstate(all="ignore"):
        scale = _rms(values)
        narrow -= values
        noise = _rms(narrow)
        tolerance = task.tolerance_of(plain.dtype)
        rtol, least = tolerance.bounds(plain.dtype, scale)[0], tolerance.least(plain.dtype, scale)
        noisy = float_errors(plain, values, rtol / NOISY, math.inf, least).by_atol if math.isfinite(least) else 0
        spread = math.sqrt(max(scale**2 - _mean(values) ** 2, 0.0)) if values.size >= FEW else 0.0
        return Expected(name, plain.dtype, values, noise, scale, noisy, (spread if spread > SAME * scale else math.inf,))


def _part(tensor: Tensor, of: int, first: bool, axis: int) -> Tensor:
    """A tensor of the same shape, made of a part of its elements: each stands for its neighbours, or the first ones for all."""
    count = tensor.data.shape[axis] if tensor.dtype in FLOATS and tensor.data.ndim else 0
    if count < 2 * of:
        return tensor
    at = numpy.arange(count)
    return Tensor(tensor.dtype, numpy.ascontiguousarray(numpy.take(tensor.data, at % (count // of) if first else at // of * of, axis)))


def _of_parts(
    task: Task, case: Case, tensors: Mapping[str, Tensor], originals: Mapping[str, Any], right: tuple[Expected, ...], double: bool
) -> tuple[tuple[float, float], ...]:
    """Where outputs are of few digits the result of a part of the inputs may be nearly right. What does not depend on the rest at all
    is no shortcut. Found out once for a case."""
    found = [[math.inf, math.inf] for _ in right]
    known = _sampled.setdefault(task, {})
    if case not in known and any(one.dtype in NARROW for one in right):
        for of, first, axis in _PARTS:
            part = {name: _part(tensor, of, first, axis) for name, tensor in tensors.items()}
            try:
                answer = _asked(task, part, originals, double)
            except TaskFault:  # inputs of another form may be invalid
                continue
            for one, got, least in zip(right, answer, found):
                if one.dtype in NARROW and got.shape == one.shape and one.scale:
                    with numpy.errstate(all="ignore"):
                        far = _rms(numbers(got) - one.values) / one.scale
                    least[of == HALF] = min(least[of == HALF], far if far > SAME else math.inf)
    return known.setdefault(case, tuple((sample, half) for sample, half in found))


def _answered(task: Task, case: Case, tensors: Mapping[str, Tensor], originals: Mapping[str, Any]) -> tuple[tuple[Expected, ...], str]:
    plain = _asked(task, tensors, originals, False)
    wide, warning = _wide(task, tensors, originals, plain)
    right = tuple(_expected(task, *one) for one in zip(task.outputs, plain, wide))
    parts = _of_parts(task, case, tensors, originals, right, task.precision != "native" and not warning)
    made = (one._replace(shortcuts=(*one.shortcuts, *(far * one.scale for far in some))) for one, some in zip(right, parts))
    return tuple(made), warning


def draw(task: Task, case: Case, seed: int, number: int = 0) -> Draw:
    """Raises TaskFault."""
    begun = time.monotonic()
    tensors, plain, originals = _generated(task, case, seed)
    expected, warning = _answered(task, case, tensors, originals)
    return Draw(number, case, tensors, plain, originals, expected, warning, time.monotonic() - begun)


def _exchanged(one: Draw, rng: Any) -> dict[str, Tensor] | None:
    """The inputs of a draw, with two elements of each input of floats exchanged. None: that is no other input."""
    tensors = dict(one.tensors)
    for name, tensor in one.tensors.items():
        if tensor.dtype not in FLOATS or tensor.data.size < 2:
            continue
        data = tensor.data.copy()
        flat = data.reshape(-1)
        a, b = (int(i) for i in rng.choice(flat.size, 2, replace=False)) if flat.size < 1 << 16 else map(int, rng.integers(0, flat.size, 2))
        flat[a], flat[b] = flat[b], flat[a]
        tensors[name] = Tensor(tensor.dtype, data)
    same = all(tensors[name] is one.tensors[name] or (tensors[name].data == one.tensors[name].data).all() for name in tensors)
    return None if same else tensors


def changed(task: Task, one: Draw, seed: int, number: int) -> Draw:
    """The draw with two elements of each input of floats exchanged, for the check alone: a solution that knows inputs by a few elements,
    and has kept their result, is wrong then. No timed launch gets such a draw: updating a result that was kept would be faster than
    computing one.

    Where the task allows no exchange, there is nothing to exchange, or no exchange changes the result (a sum, a largest element, a
    sort), the draw is made of a new seed."""
    if not task.exchange:
        return draw(task, one.case, seed, number)
    begun = time.monotonic()
    rng = numpy.random.default_rng(seed)
    for _ in range(EXCHANGES):
        tensors = _exchanged(one, rng)
        if tensors is None:
            break
        expected, warning = _answered(task, one.case, tensors, one.originals)
        made = Draw(number, one.case, tensors, one.numbers, one.originals, expected, warning, time.monotonic() - begun)
        if not _passes(task, made, one):
            return made
    return draw(task, one.case, seed, number)


def _same(a: tuple[Expected, ...], b: tuple[Expected, ...]) -> bool:
    return all(
        x.dtype == y.dtype and x.shape == y.shape and numpy.array_equal(x.values, y.values, equal_nan=x.dtype in FLOATS)
        for x, y in zip(a, b)
    )


def _passes(task: Task, one: Draw, other: Draw) -> bool:
    """Whether the right result of one draw would pass for another's."""
    for mine, its in zip(one.expected, other.expected):
        if mine.dtype != its.dtype or mine.shape != its.shape:
            return False
        got = Tensor("f64" if mine.dtype in FLOATS else mine.dtype, its.values)
        if compare(task, mine, got, one.case, 0) is not None:
            return False
    return True


def examine(task: Task, case: Case, first: Draw, second: Draw, variant: Draw) -> tuple[str, ...]:
    """Whether the task is one, by two draws of a case, and what `changed` made of the first: warnings, which go into each verdict. Raises
    TaskFault."""
    again, _ = _answered(task, case, first.tensors, first.originals)
    if not _same(first.expected, again):
        raise TaskFault(f"task {task.name}: its reference is random, two calls with the same inputs differ: seed what it draws")
    for mine, its in zip(first.expected, second.expected):
        if mine.dtype != its.dtype or mine.shape != its.shape:
            raise TaskFault(
                f"task {task.name}: {mine.name} is {mine.dtype}{list(mine.shape)} in one draw and {its.dtype}{list(its.shape)} in another "
                f"of the case {case}: shapes and dtypes must depend on the case alone"
            )
    for name, tensor in first.tensors.items():
        other = second.tensors.get(name)
        if other is None or other.dtype != tensor.dtype or other.shape != tensor.shape:
            raise TaskFault(f"task {task.name}: the input {name} has another shape or dtype in another draw of the case {case}")
    if len(first.tensors) != len(second.tensors) or first.numbers.keys() != second.numbers.keys():
        raise TaskFault(f"task {task.name}: two draws of the case {case} have different inputs")
    said = [one.warning for one in (first, second) if one.warning][:1]
    if _passes(task, first, second):
        if not _same(first.expected, second.expected) and _passes(task, first, variant):
            raise TaskFault(
                f"task {task.name}: in the case {case} the results of all draws are equal within the tolerance, so a constant would pass "
                f"for right: let inputs differ more, give a narrower tolerance, or outputs of a dtype with more digits"
            )
        said.append(f"the case {case}: the results of two draws are equal within the tolerance, so a constant would pass for right")
    for one in first.expected:
        if one.dtype in NARROW and one.shortcuts[-1] <= CLEAR * least_rms(one.dtype, int(one.values.size), one.scale, one.noise):
            said.append(
                f"the case {case}: {one.name} as {one.dtype} does not tell whether half of the inputs were read: let few inputs be much "
                f"larger than the others, or the output be of a dtype with more digits"
            )
    return tuple(said)


# Errors of a result: float_errors() finds out quickly whether there is one, and the functions here find out which

CLEAR = 1.25  # a shortcut must be off by this many times more than any right solution may be
UNTOUCHED_BYTES = 2  # elements of at least this many bytes do not keep their poison by coincidence


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
    """The error of an output each of whose elements is within its tolerance: the root mean square of its errors is more than is
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
    """The error of a value, or of the precision of all. `got`: an output, or what may be one, in float64."""
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
    """A better reason for the error, if the element has still the bits that were there before."""
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


# Draws that are kept: thousands of solutions share a task, and its reference may be slow. Hidden, and exchanged little by little


BYTES = 2 << 30, 16 << 30  # least and most bytes for all kept draws; in between a sixteenth of the machine's memory
REFRESH = 32  # uses of draws after which some are dropped
# Kept draws of one case: as many as timing a solution may need, if this fraction of the memory has room for them; draws
# to drop at a time.
VARIANTS, VARIANTS_PART, VARIANTS_GO = 144, 0.2, 4
LIMITS = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"  # files: a container's memory in bytes


class Drawn(NamedTuple):
    draws: tuple[Draw, ...]
    warnings: tuple[str, ...]
    variant: Draw  # the first draw with few elements exchanged


def _default_bytes() -> int:
    least, most = BYTES
    try:
        return max(least, min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16, most))
    except (ValueError, OSError):
        return least


def half_of_memory() -> int:
    """Bytes: half of what this process can get now, by the machine and by the limit of its container."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    for limit in LIMITS:
        with contextlib.suppress(OSError, ValueError):
            found.append(int(Path(limit).read_text(encoding="ascii")))
    return min(found) // 2 if found else _default_bytes()


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.1f} MiB"


class _Entry:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.draws: list[Draw] = []
        self.variants: list[Draw] = []
        self.variant: Draw | None = None
        self.warnings: tuple[str, ...] | None = None  # None: the task was not examined yet
        self.fault: TaskFault | None = None
        self.used = 0
        self.made = 0
        self.nbytes = 0

    def count(self) -> None:
        """Counts the entry's bytes anew, after a change."""
        variant = self.variant
        self.nbytes = sum(one.nbytes for one in (*self.draws, *self.variants, *([variant] if variant is not None else [])))

    def give_up_variants(self, nbytes: int) -> int:
        """As many as have so many bytes, where nobody changes them just now. The bytes that this frees."""
        if not self.variants or not self.lock.acquire(blocking=False):
            return 0
        try:
            before = self.nbytes
            del self.variants[: -(-nbytes // max(self.variants[0].nbytes, 1))]
            self.count()
            return before - self.nbytes
        finally:
            self.lock.release()


class Pool:
    """Thread-safe. A draw is made by the thread that asks for it; others that ask for the same task and case wait. `bound`: the bytes that
    draws of one solution may take."""

    def __init__(self, most: int | None = None, bound: int | None = None) -> None:
        self._bound = bound
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[object, Case, int | None], _Entry] = OrderedDict()
        self._most = _default_bytes() if most is None else most

    def take(self, task: Task, case: Case, count: int, seed: int | None = None, needed: int = 0, others: int = 0) -> Drawn:
        """So many different draws of a case. With a seed they are the same each time, and no secret. `needed`: how many its solutions need
        in all, besides draws of other cases with `others` bytes; no more than one is made where these are too many. Raises TaskFault."""
        with self._lock:
            key = (task.key, case, seed)
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
        with entry.lock:
            if entry.fault is not None:
                raise entry.fault
            try:
                self._first(entry, task, case, seed, needed, others)
                self._fill(entry, task, case, count, seed)
            except TaskFault as fault:
                entry.fault, entry.variant = fault, None
                entry.draws.clear()
                entry.variants.clear()
                raise
            finally:
                entry.count()
            assert entry.warnings is not None and entry.variant is not None
            drawn = Drawn(tuple(entry.draws[:count]), entry.warnings, entry.variant)
        self._evict()
        return drawn

    def variants(self, task: Task) -> tuple[Draw, ...]:
        """Draws of the timed case that were made to time other solutions. Never waits."""
        with self._lock:
            entry = self._entries.get((task.key, task.timed_case, None))
        return () if entry is None else tuple(entry.variants)

    def keep(self, task: Task, made: Draw) -> None:
        """A draw that a solution was timed with, for others, where there is room besides all else. Not for judges with a seed, whose draws
        are the same each time."""
        with self._lock:
            entry = self._entries.get((task.key, made.case, None))
            fits = made.nbytes + sum(one.nbytes for one in self._entries.values()) <= self._most
        if entry is None or not fits or not entry.lock.acquire(blocking=False):  # fails while a slow reference holds the lock
            return
        try:
            if len(entry.variants) < self._variants_most(made.nbytes):
                entry.variants.append(made)
                entry.nbytes += made.nbytes
        finally:
            entry.lock.release()

    def make_variants(self, task: Task, count: int, seconds: float, crew: Executor) -> None:
        """Makes `count` draws for `variants`, fewer where there is less room, and none where the missing ones take more than `seconds` of
        the reference. `crew` runs it. Where the reference fails, the judgement that needs such a draw reports it."""
        with self._lock:
            entry = self._entries.get((task.key, task.timed_case, None))
        if entry is None or not entry.draws:
            return
        with entry.lock, contextlib.suppress(TaskFault):
            one = max(entry.draws[-1].nbytes, 1)
            missing = min(count, self._variants_most(one)) - len(entry.variants)
            if missing <= 0 or missing * median(made.seconds for made in entry.draws) > seconds:
                return
            with self._lock:
                missing = min(missing, (self._most - sum(other.nbytes for other in self._entries.values())) // one)
                entry.nbytes += max(missing, 0) * one  # tell other threads that there is less room
            numbers = range(entry.made, entry.made + missing)
            entry.made += len(numbers)
            try:
                for made in crew.map(lambda number: draw(task, task.timed_case, new_seed(), number), numbers):
                    entry.variants.append(made)
            finally:
                entry.count()

    def _variants_most(self, nbytes: int) -> int:
        return min(VARIANTS, int(VARIANTS_PART * self._most) // max(nbytes, 1))

    def _first(self, entry: _Entry, task: Task, case: Case, seed: int | None, needed: int, others: int) -> None:
        """Makes the first draw, which tells how much memory draws take."""
        if not entry.draws:
            entry.draws.append(self._drawn(entry, task, case, seed))
        one = entry.draws[0].nbytes
        if self._bound is not None and needed and needed * one + others > self._bound:
            rest = f" besides {_mib(others)} of its other cases" if others else ""
            raise TaskFault(
                f"task {task.name}: a draw of the case {case} takes {_mib(one)} of memory, inputs and results in float64, and "
                f"{needed} are needed{rest}; the draws of a solution may take {_mib(self._bound)}: make the case smaller, or "
                "give the judge more draw_bytes"
            )

    def _fill(self, entry: _Entry, task: Task, case: Case, count: int, seed: int | None) -> None:
        entry.used += 1
        if seed is None and entry.warnings is not None and entry.used % REFRESH == 0:
            del entry.draws[0], entry.variants[:VARIANTS_GO]
            entry.variant = None
        while len(entry.draws) < max(count, 2):
            entry.draws.append(self._drawn(entry, task, case, seed))
            if len(entry.draws) == 2 and entry.warnings is None:
                entry.variant = self._changed(entry, task, seed)
                entry.warnings = examine(task, case, entry.draws[0], entry.draws[1], entry.variant)
        if entry.variant is None:
            entry.variant = self._changed(entry, task, seed)

    @staticmethod
    def _drawn(entry: _Entry, task: Task, case: Case, seed: int | None) -> Draw:
        number, entry.made = entry.made, entry.made + 1
        return draw(task, case, new_seed() if seed is None else seed + number, number)

    @staticmethod
    def _changed(entry: _Entry, task: Task, seed: int | None) -> Draw:
        number, entry.made = entry.made, entry.made + 1
        return changed(task, entry.draws[0], new_seed() if seed is None else seed + number, number)

    def _evict(self) -> None:
        """Entries that were not used for the longest time go first: their variants, which are soon made again, and then the entries;
        the last one stays."""
        with self._lock:
            total = sum(entry.nbytes for entry in self._entries.values())
            others = list(self._entries.items())[:-1]
            for _, entry in others:
                if total <= self._most:
                    return
                total -= entry.give_up_variants(total - self._most)
            for key, entry in others:
                if total <= self._most:
                    return
                if entry.fault is None:
                    total -= entry.nbytes
                    del self._entries[key]
