"""Tasks: a reference, a generator of inputs, cases, outputs and how exactly they are to be met."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import BadArgument
from ._values import EPS, FLOATS

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
PRECISIONS = ("auto", "f64", "native")
CASES_MAX = 64
# Tolerances as fractions of the outputs' typical size (their root mean square) and of each element; wide enough for
# another order of additions.
_RTOL = {"f64": 1e-9, "f32": 1e-4, "f16": 1e-2, "bf16": 4e-2, "f8_e4m3": 0.15, "f8_e5m2": 0.3}
# Roundings of the result's own precision that a solution may be off on average, beyond the reference's error.
_ROUNDINGS = {"f64": 32.0, "f32": 32.0, "f16": 2.0, "bf16": 2.0, "f8_e4m3": 1.0, "f8_e5m2": 1.0}
# The smallest element that has all digits; a normal number for dtypes whose small elements are often flushed to zero.
_UNIT = {"f64": 2.0**-1022, "f32": 2.0**-126, "bf16": 2.0**-126, "f16": 2.0**-24, "f8_e4m3": 2.0**-9, "f8_e5m2": 2.0**-16}
_LEAST = 1e-12  # fraction of the outputs' root mean square: smaller elements may be roundings of float64
_BY_ATOL = 1 / 16  # fraction of the elements that may be right by `atol` alone, beyond those that roundings explain
FEW = 16  # with fewer elements the root mean square says little


class Case(Mapping[str, Any]):
    """A named set of numbers, such as `n=1024, m=4096`: the keywords of the generator, the numbers of a kernel's parameters, and
    the names in expressions. Texts and None are for the generator alone. Immutable."""

    def __init__(self, values: Mapping[str, Any] | None = None, **more: Any) -> None:
        self._values = {**(values or {}), **more}
        for name, value in self._values.items():
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise BadArgument(f"a case's names are identifiers, not {name!r}")
            if value is not None and not isinstance(value, (bool, int, float, str)):
                raise BadArgument(f"a case's values are numbers and texts, not {name} = {value!r:.80}")

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def numbers(self) -> dict[str, Any]:
        return {name: value for name, value in self._values.items() if isinstance(value, (bool, int, float))}

    @property
    def size(self) -> int:
        """Cases are ordered by this product of their whole numbers."""
        return math.prod(abs(v) for v in self._values.values() if isinstance(v, int) and not isinstance(v, bool) and v)

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._values.items()) or "the only case"

    def __repr__(self) -> str:
        return f"Case({str(self) if self._values else ''})"

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))


@dataclass(frozen=True)
class Tolerance:
    """An element is right within `atol + rtol * |expected|`. None: by the output's dtype, `atol` then of the outputs' root mean
    square (f32: 1e-4 of each).

    `precision` bounds the root mean square of all errors, against float64: so many times the error that the reference has in the
    inputs' own precision, and some roundings of the output's. math.inf: no bound."""

    rtol: float | None = None
    atol: float | None = None
    precision: float = 8.0

    def __post_init__(self) -> None:
        for name in ("rtol", "atol", "precision"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0):
                raise BadArgument(f"{name} is a number of at least 0, or None, not {value!r}")

    def bounds(self, dtype: str, scale: float) -> tuple[float, float]:
        """rtol and atol for an output whose root mean square is `scale`."""
        if dtype not in FLOATS:
            return self.rtol or 0.0, self.atol or 0.0
        rtol = _RTOL[dtype] if self.rtol is None else self.rtol
        return rtol, (rtol * scale if self.rtol is None else 0.0) if self.atol is None else self.atol

    def allowed_rms(self, dtype: str, scale: float, noise: float) -> float:
        """The largest root mean square of errors, where the reference's own is `noise`."""
        if dtype not in FLOATS or math.isinf(self.precision):
            return math.inf
        return self.precision * noise + _ROUNDINGS[dtype] * EPS[dtype] * scale

    # `atol` of the outputs' typical size is for elements that are small because larger terms cancel. A solution that
    # leaves small elements out would pass by it, too, so most elements must be right without it. An `atol` that the
    # task gives is not restricted.

    def counted(self, dtype: str) -> tuple[float, float]:
        """Which elements count as right by `atol` alone: from the first number on, and from the second one times `atol` on."""
        rtol, _ = self.bounds(dtype, 0.0)
        return (math.inf, 0.0) if dtype not in FLOATS or self.atol is not None or not rtol else (_UNIT[dtype] / rtol, _LEAST / rtol)

    def least(self, dtype: str, scale: float) -> float:
        """The size from which on elements count, where `scale` is the outputs' root mean square."""
        least, part = self.counted(dtype)
        return max(least, part * self.bounds(dtype, scale)[1])

    def allowed_by_atol(self, dtype: str, size: int) -> int:
        """How many of `size` elements may be: those that a solution of the allowed precision has, where terms cancel as in sums of
        random numbers, and some, so that chance accuses no right solution."""
        if dtype not in FLOATS:
            return size
        many = size * (_BY_ATOL + _ROUNDINGS[dtype] * EPS[dtype] / _RTOL[dtype])
        return int(many + 6 * math.sqrt(many) + 6)


def least_rms(dtype: str, size: int, scale: float, noise: float) -> float:
    """The root mean square of errors that every right solution may have: roundings of the results, and twice what the reference has."""
    return max(2 * noise, (0.5 if size >= FEW else 1.0) * EPS[dtype] * scale)


_DEFAULT = Tolerance()


@dataclass(frozen=True, eq=False)
class Task:
    """A description of the function that solutions compute.

    `inputs(rng, **case)` makes the inputs of a case with a `numpy.random.Generator`: a dict of NumPy arrays, torch tensors and
    numbers. `reference(**inputs)` returns what is right: an array or a tuple of them, for the names in `outputs`; their shapes and
    dtypes are those that a solution writes. Both may be slow: results are kept and shared by all solutions.

    `cases` are dicts of numbers; the last one is timed unless `timed` is another's index. `small` is the case, or cases, for the
    interpreter, where the smallest of `cases` would take it too long.
    `tolerance` is a `Tolerance`, or a dict of them by dtype. `precision`: "f64" gives the reference float64 where inputs are floats,
    "native" gives it the inputs as they are, "auto" tries the first and then the second.
    `baseline` is what a solution's time is compared with: a `Solution` of the same task.

    `flops` are the floating-point operations that the timed case takes: a number, an expression such as "2 * n * m * k" of the case's
    numbers and the inputs' shapes, as in a launch's grid, or a function with the case's values as keywords; None: nobody has counted.
    With them a verdict says whether memory or arithmetic is the roof.

    `exchange`: elements of an input may change places, and it is still one. Then the check has inputs that are nearly those of an
    earlier launch: a solution that takes the ones for the others is found out. False where inputs are sorted, symmetric, normalised.

    A task is Python, and trusted.
    """

    name: str
    reference: Callable[..., Any]
    inputs: Callable[..., Mapping[str, Any]]
    cases: Sequence[Mapping[str, Any]] = ({},)
    outputs: Sequence[str] = ("out",)
    tolerance: Tolerance | Mapping[str, Tolerance] | None = None
    precision: str = "auto"
    baseline: Any = None
    small: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None
    timed: int = -1
    exchange: bool = False
    flops: Any = None
    text: str = ""  # for the people who solve the task
    key: object = field(default_factory=object, repr=False)  # results of the task are kept by this key

    def __post_init__(self) -> None:
        if not callable(self.reference) or not callable(self.inputs):
            raise BadArgument(f"task {self.name}: reference and inputs are functions")
        if self.precision not in PRECISIONS:
            raise BadArgument(f"task {self.name}: precision is one of {', '.join(PRECISIONS)}, not {self.precision!r}")
        outputs = (self.outputs,) if isinstance(self.outputs, str) else tuple(self.outputs)
        if not outputs or len(set(outputs)) != len(outputs) or not all(isinstance(o, str) and NAME.fullmatch(o) for o in outputs):
            raise BadArgument(f"task {self.name}: outputs are different identifiers, not {outputs!r:.80}")
        object.__setattr__(self, "outputs", outputs)
        cases = self._cases(self.cases)
        if not 1 <= len(cases) <= CASES_MAX:
            raise BadArgument(f"task {self.name}: {len(cases)} cases; 1 to {CASES_MAX} are possible")
        object.__setattr__(self, "cases", cases)
        if not -len(cases) <= self.timed < len(cases):
            raise BadArgument(f"task {self.name}: timed={self.timed} is no index of its {len(cases)} cases")
        if self.small is not None:
            object.__setattr__(self, "small", small := self._cases(self.small))
            if not small:
                raise BadArgument(f"task {self.name}: small is a case, or several, not none: leave it out for the smallest of cases")
        given = self.tolerance.values() if isinstance(self.tolerance, Mapping) else [self.tolerance]
        if not all(one is None or isinstance(one, Tolerance) for one in given):
            raise BadArgument(f"task {self.name}: tolerance is a kops.judge.Tolerance, or a dict of them by dtype")
        number = isinstance(self.flops, (int, float)) and not isinstance(self.flops, bool)
        if not (self.flops is None or number or isinstance(self.flops, str) or callable(self.flops)):
            raise BadArgument(f"task {self.name}: flops is a number, an expression or a function of the case, not {self.flops!r:.80}")

    def _cases(self, given: Any) -> tuple[Case, ...]:
        items = [given] if isinstance(given, Mapping) else list(given)
        if not all(isinstance(one, Mapping) for one in items):
            raise BadArgument(f"task {self.name}: a case is a dict of numbers")
        return tuple(one if isinstance(one, Case) else Case(one) for one in items)

    @property
    def all_cases(self) -> tuple[Case, ...]:
        return tuple(self.cases)  # type: ignore[arg-type]

    @property
    def timed_case(self) -> Case:
        return self.all_cases[self.timed]

    @property
    def small_cases(self) -> tuple[Case, ...]:
        """The cases for the interpreter."""
        if self.small is not None:
            return tuple(self.small)  # type: ignore[arg-type]
        return (min(self.all_cases, key=lambda case: case.size),)

    def tolerance_of(self, dtype: str) -> Tolerance:
        if isinstance(self.tolerance, Mapping):
            return self.tolerance.get(dtype, _DEFAULT)
        return self.tolerance or _DEFAULT


# Files. A task's is Python and is run: it is trusted.


def load_tasks(path: str | os.PathLike[str]) -> dict[str, Task]:
    """The tasks of a Python file by name: its `task`, or its `tasks`, which are several; or the problem of a file in
    KernelBench's form. Runs the file."""
    file = Path(path)
    if not file.is_file():
        raise BadArgument(f"{file}: there is no such file; a task is a .py that has a `task`")
    if _is_problem(file):
        from .kernelbench import load

        problem = load(file)
        return {problem.name: problem}
    name = f"kops_judge_task_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise BadArgument(f"{file}: a task is a .py that has a `task`")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise BadArgument(f"{file}: {type(error).__name__}: {error}") from error
    found: Any = getattr(module, "tasks", None)
    if found is None:
        found = getattr(module, "task", None)
    items = [found] if isinstance(found, Task) else list(found.values() if isinstance(found, dict) else found or ())
    if not items or not all(isinstance(one, Task) for one in items):
        raise BadArgument(f"{file}: it has no `task`, a kops.judge.Task, and no `tasks`, a list of them")
    return {one.name: one for one in items}


def _is_problem(file: Path) -> bool:
    from .kernelbench import is_problem

    try:
        return is_problem(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        return False


def load_task(path: str | os.PathLike[str]) -> Task:
    """The task of a file, which may say one of several by `FILE:NAME`."""
    text = os.fspath(path)
    file, colon, name = text.rpartition(":")
    if not colon or not file.endswith(".py"):
        file, name = text, ""
    tasks = load_tasks(file)
    if name:
        if name not in tasks:
            raise BadArgument(f"{file} has no task {name!r}; it has {', '.join(tasks)}")
        return tasks[name]
    if len(tasks) > 1:
        raise BadArgument(f"{file} has several tasks, say which: {file}:{next(iter(tasks))} ({', '.join(tasks)})")
    return next(iter(tasks.values()))
