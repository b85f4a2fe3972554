"""From names to arguments: which memory and numbers each launch gets for a draw, and how large its grid is. Raises Refused for what
does not fit, before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from .._base.declarations import DTYPES
from .._base.errors import KopsError
from .._source.signature import fault
from ..interpret._expressions import evaluate
from ..interpret._geometry import dimensions
from ._draws import Draw
from ._errors import Refused
from ._solution import Launch, Solution
from ._task import Task

__all__ = ["Area", "Bound", "Plan", "plan_of"]

SHARED_MAX = 227 << 10


class Area(NamedTuple):
    """Memory that launches get by name. `role`: "input", "output" or "scratch"."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype]


class Bound(NamedTuple):
    """One launch of a draw. `arguments`: a name of an area, or a number."""

    launch: Launch
    arguments: tuple[Any, ...]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    cluster: tuple[int, ...] | None


@dataclass(frozen=True)
class Plan:
    areas: dict[str, Area]
    launches: tuple[Bound, ...]

    def of(self, role: str) -> list[Area]:
        return [area for area in self.areas.values() if area.role == role]

    @property
    def nbytes(self) -> int:
        return sum(area.nbytes for area in self.areas.values())

    @property
    def operand_bytes(self) -> int:
        """Inputs and outputs, each once."""
        return sum(area.nbytes for area in self.areas.values() if area.role != "scratch")


def _areas(task: Task, solution: Solution, draw: Draw, names: Mapping[str, Any]) -> dict[str, Area]:
    areas = {name: Area(name, "input", tensor.shape, tensor.dtype) for name, tensor in draw.tensors.items()}
    areas |= {one.name: Area(one.name, "output", one.shape, one.dtype) for one in draw.expected}
    total = 0
    for name, scratch in solution.scratch.items():
        if name in areas or name in names:
            raise Refused(f"scratch {name}: the task has something of this name, {', '.join([*areas, *names])}: give it another one")
        count = _evaluated(scratch.elements, names, f"scratch {name}")
        if count < 0:
            raise Refused(f"scratch {name} has {count} elements in the case {draw.case}")
        areas[name] = Area(name, "scratch", (count,), scratch.dtype)
        total += areas[name].nbytes
        if total > solution.SCRATCH_MAX:
            raise Refused(f"the scratch has more than {Solution.SCRATCH_MAX} bytes in the case {draw.case}")
    return areas


def _evaluated(value: Any, names: Mapping[str, Any], what: str) -> int:
    try:
        return int(evaluate(value, names, what))
    except KopsError as error:
        raise Refused(str(error)) from None


def _argument(launch: Launch, param: Any, areas: Mapping[str, Area], names: Mapping[str, Any]) -> Any:
    where = f"{launch.entry}: the parameter {param.name}"
    if not param.is_tensor:
        if param.name not in names:
            known = ", ".join(names) or "none"
            raise Refused(f"{where} is a number, and the case has none of that name; it has {known}")
        value = names[param.name]
        if isinstance(value, float) and param.dtype not in ("f16", "bf16", "f32", "f64"):
            raise Refused(f"{where} is of {param.dtype}, and the task's {param.name} is {value}: declare it as float or double")
        return value
    area = areas.get(param.name)
    if area is None:
        raise Refused(f"{where} is a pointer, and there is no memory of that name; there are {', '.join(areas)}")
    if area.dtype != param.dtype:
        raise Refused(f"{where} is of {param.dtype}, and {param.name} of {area.dtype}")
    return param.name


def _geometry(launch: Launch, names: Mapping[str, Any]) -> tuple[Any, Any, int, Any]:
    try:
        grid = dimensions(launch.grid, names, "grid")
        block = dimensions(launch.block, names, "block")
        cluster = None if launch.cluster is None else dimensions(launch.cluster, names, "cluster")
        shared = evaluate(launch.shared, names, "shared")
    except KopsError as error:
        raise Refused(f"{launch.entry}: {error}") from None
    if not 0 <= shared <= SHARED_MAX:
        raise Refused(f"{launch.entry}: {shared} bytes of shared memory; a block has at most {SHARED_MAX}")
    return grid, block, shared, cluster


def plan_of(task: Task, solution: Solution, draw: Draw, multiprocessors: int | None = None) -> Plan:
    """Raises Refused. `multiprocessors`: of the GPU; None in the interpreter."""
    solution.check()
    names: dict[str, Any] = {**draw.case.numbers, **draw.numbers}
    areas = _areas(task, solution, draw, names)
    known = {**names, **{name: area.shape for name, area in areas.items()}}
    if multiprocessors is not None:
        known.setdefault("multiprocessors", multiprocessors)
    launches = []
    written: set[str] = set()
    for launch in solution.launches:
        wrong = fault(launch.params)
        if wrong is not None:
            raise Refused(f"{launch.entry}: {wrong}")
        arguments = tuple(_argument(launch, param, areas, names) for param in launch.params)
        written |= {param.name for param in launch.params if param.is_tensor and param.kind != "in"}
        launches.append(Bound(launch, arguments, *_geometry(launch, known)))
    missing = [name for name in task.outputs if name not in written and areas[name].nbytes]
    if missing:
        raise Refused(f"no launch writes {missing[0]}: a parameter of that name that is no pointer to const does")
    return Plan(areas, tuple(launches))
