"""From names to arguments: which memory and numbers each launch gets for a draw, and how large its grid is. Raises Refused for what
does not fit, before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from .. import KopsError, Param
from .._companions import DTYPES, fault
from ..interpret._arguments import check_shape
from ..interpret._expressions import evaluate
from ..interpret._geometry import dimensions
from ._draws import Draw
from ._errors import Refused
from ._solution import Launch, Solution
from ._task import Task

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
    """One launch of a draw. `params`: with the sizes that were checked here left out, and those of boxes as numbers, since the names
    in them may be the case's, which a kernel does not know. `arguments`: a name of an area, or a number."""

    launch: Launch
    params: tuple[Param, ...]
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


def _areas(task: Task, solution: Solution, draw: Draw, names: dict[str, Any]) -> dict[str, Area]:
    """All memory by name. `names` gets the shapes, so that expressions have them, too."""
    areas = {name: Area(name, "input", tensor.shape, tensor.dtype) for name, tensor in draw.tensors.items()}
    areas |= {one.name: Area(one.name, "output", one.shape, one.dtype) for one in draw.expected}
    numbers = list(names)
    names |= {name: area.shape for name, area in areas.items()}
    total = 0
    for name, scratch in solution.scratch.items():
        if name in names:
            raise Refused(f"scratch {name}: the task has something of this name, {', '.join([*areas, *numbers])}: give it another one")
        count = _evaluated(scratch.elements, names, f"scratch {name}")
        if count < 0:
            raise Refused(f"scratch {name} has {count} elements in the case {draw.case}")
        areas[name] = Area(name, "scratch", (count,), scratch.dtype)
        names[name] = (count,)
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
        if param.lanes > 1:
            raise Refused(f"{where} is a structure by value, and a case has numbers: take its parts one by one")
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


def _params(launch: Launch, areas: Mapping[str, Area], names: Mapping[str, Any]) -> tuple[Param, ...]:
    """The parameters as they are declared for this draw."""
    made = []
    for param in launch.params:
        if param.is_tensor:
            try:
                check_shape(param, areas[param.name].shape, names)
                tma = param.map
                if tma is not None:
                    box = [evaluate(size, names, f"{param.name}.box[{i}]") for i, size in enumerate(tma.box)]
                    tma = replace(tma, box=tuple(box))
            except KopsError as error:
                raise Refused(f"{launch.entry}: {error}") from None
            rank = param.rank if param.shape is None else len(param.shape)
            param = replace(param, shape=None, elements=None, rank=rank, map=tma)
        made.append(param)
    return tuple(made)


def plan_of(task: Task, solution: Solution, draw: Draw, multiprocessors: int | None = None) -> Plan:
    """Raises Refused. `multiprocessors`: of the GPU; None in the interpreter."""
    solution.check()
    numbers: dict[str, Any] = {**draw.case.numbers, **draw.numbers}
    names = dict(numbers)  # of every expression: numbers, and shapes
    if multiprocessors is not None:
        names.setdefault("multiprocessors", multiprocessors)
    areas = _areas(task, solution, draw, names)
    launches = []
    written: set[str] = set()
    for launch in solution.launches:
        wrong = fault(launch.params)
        if wrong is not None:
            raise Refused(f"{launch.entry}: {wrong}")
        arguments = tuple(_argument(launch, param, areas, numbers) for param in launch.params)
        written |= {param.name for param in launch.params if param.is_tensor and param.kind != "in"}
        launches.append(Bound(launch, _params(launch, areas, names), arguments, *_geometry(launch, names)))
    missing = [name for name in task.outputs if name not in written and areas[name].nbytes]
    if missing:
        raise Refused(f"no launch writes {missing[0]}: a parameter of that name that is no pointer to const does")
    return Plan(areas, tuple(launches))
