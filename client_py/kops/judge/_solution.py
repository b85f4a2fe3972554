"""Solutions of strangers: a CUDA source, and how its kernels are launched. For a draw, names become arguments: memory and numbers of each
launch, and the size of its grid. Nothing here runs any of it. Raises Refused for what does not fit, before anything is sent."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from .. import BadArgument, KopsError, Param
from .._companions import DTYPES, fault, parse
from ..interpret._arguments import check_shape
from ..interpret._expressions import dimensions, evaluate
from ._draws import Draw
from ._task import NAME, Task
from ._verdict import Refused

SIGNATURE_MAX = 16 << 10
OPTIONS_MAX, OPTION_MAX = 64, 4096
ENTRY_MAX, NAME_MAX = 1024, 512
Size = Any  # an int, an expression, or one to three of them


def _check_text(value: Any, most: int, what: str) -> None:
    """Raises Refused for what is no text, too long, or cannot be sent."""
    if not isinstance(value, str):
        raise Refused(f"{what} is a text, not {value!r:.80}")
    try:
        size = len(value.encode()) if len(value) <= most else len(value)
    except UnicodeEncodeError:
        raise Refused(f"{what} has characters that are none (surrogates)") from None
    if size > most:
        raise Refused(f"{what} has more than {most} bytes")
    if "\0" in value:
        raise Refused(f"{what} has a character NUL")


def _is_size(value: Any) -> bool:
    return isinstance(value, (int, str)) and not isinstance(value, bool)


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel of the source. `signature` is its parameter list as C writes it, with `out` before what is only written;
    its parameters are bound by name: to the task's inputs, its outputs, the solution's scratch, and the numbers of the case.
    Sizes in the signature, `grid`, `block`, `cluster` and `shared` are numbers or expressions of all of these names, whether or not
    the kernel has a parameter of that name. `cooperative` and `pdl`: as for `Client.kernel`."""

    entry: str
    signature: str
    grid: Size = 1
    block: Size = 256
    shared: int | str = 0
    cluster: Size = None
    cooperative: bool = False
    pdl: bool = False

    @cached_property
    def params(self) -> tuple[Param, ...]:
        """Raises Refused."""
        _check_text(self.signature, SIGNATURE_MAX, f"{self.entry}: the signature")
        try:
            return parse(self.signature)
        except KopsError as error:
            raise Refused(f"{self.entry}: {error}") from None

    def check(self) -> None:
        """Raises Refused."""
        _check_text(self.entry, ENTRY_MAX, "entry, the name of a kernel,")
        if not self.entry.strip():
            raise Refused("entry is the name of a kernel, and is empty")
        for name in ("grid", "block", "cluster"):
            value = getattr(self, name)
            items = value if isinstance(value, (tuple, list)) else [value]
            if not (value is None and name == "cluster") and not (1 <= len(items) <= 3 and all(map(_is_size, items))):
                raise Refused(f"{self.entry}: {name} is one to three numbers or expressions, not {value!r:.80}")
        if not _is_size(self.shared):
            raise Refused(f"{self.entry}: shared is a number of bytes or an expression, not {self.shared!r:.80}")
        if not isinstance(self.cooperative, bool) or not isinstance(self.pdl, bool):
            raise Refused(f"{self.entry}: cooperative and pdl are true or false")
        _ = self.params

    def plain(self) -> dict[str, Any]:
        made = {"entry": self.entry, "signature": self.signature, "grid": self.grid, "block": self.block}
        made |= {"shared": self.shared} if self.shared else {}
        made |= {name: True for name in ("cooperative", "pdl") if getattr(self, name)}
        return made | ({"cluster": self.cluster} if self.cluster is not None else {})


@dataclass(frozen=True)
class Scratch:
    """Memory that the launches of a solution share: so many elements, a number or an expression, of the names
    that those of a launch have. Its content at first is rubbish."""

    elements: int | str
    dtype: str = "f32"

    def check(self, name: str) -> None:
        """Raises Refused."""
        if not _is_size(self.elements):
            raise Refused(f"scratch {name}: elements is a number or an expression, not {self.elements!r:.80}")
        if self.dtype not in DTYPES:
            raise Refused(f"scratch {name}: no dtype {self.dtype!r:.80}; there are {' '.join(DTYPES)}")

    def plain(self) -> dict[str, Any]:
        return {"elements": self.elements, "dtype": self.dtype}


@dataclass(frozen=True)
class Solution:
    """A CUDA source with its launches, in order. What is wrong with one is said by its verdict: making one raises nothing.

    `options` are the compiler's, of those that the daemon allows."""

    source: str
    launches: Sequence[Launch]
    scratch: Mapping[str, Scratch] = field(default_factory=dict)
    options: Sequence[str] = ()
    name: str = ""

    SOURCE_MAX = 4 << 20
    LAUNCHES_MAX = 64
    SCRATCH_COUNT_MAX = 32
    SCRATCH_MAX = 4 << 30  # bytes of all of them together

    def check(self) -> None:
        """Raises Refused for what can be seen without the task: forms and sizes."""
        _check_text(self.source, self.SOURCE_MAX, "the source")
        _check_text(self.name, NAME_MAX, "the name")
        launches = self.launches
        if not isinstance(launches, (list, tuple)) or not all(isinstance(one, Launch) for one in launches):
            raise Refused("launches is a list of Launch")
        if not 1 <= len(launches) <= self.LAUNCHES_MAX:
            raise Refused(f"{len(launches)} launches; 1 to {self.LAUNCHES_MAX} are possible")
        for launch in launches:
            launch.check()
        if not isinstance(self.scratch, Mapping) or len(self.scratch) > self.SCRATCH_COUNT_MAX:
            raise Refused(f"scratch is a dict of at most {self.SCRATCH_COUNT_MAX} Scratch by name")
        for name, one in self.scratch.items():
            if not isinstance(name, str) or not NAME.fullmatch(name) or not isinstance(one, Scratch):
                raise Refused(f"scratch is a dict of Scratch by name, and {name!r:.80} is none")
            one.check(name)
        options = self.options
        if isinstance(options, str) or not isinstance(options, Sequence) or len(options) > OPTIONS_MAX:
            raise Refused(f"options is a list of at most {OPTIONS_MAX} texts")
        for option in options:
            _check_text(option, OPTION_MAX, "an option")

    @property
    def entries(self) -> tuple[str, ...]:
        """The kernels that are launched, each once."""
        return tuple(dict.fromkeys(launch.entry for launch in self.launches))

    @property
    def key(self) -> str:
        """A hash of what is compiled."""
        parts = [self.source, *self.entries, *self.options]
        return hashlib.blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=16).hexdigest()

    # Files

    def plain(self) -> dict[str, Any]:
        """The solution as JSON has it."""
        made: dict[str, Any] = {"name": self.name} if self.name else {}
        made |= {"launches": [launch.plain() for launch in self.launches], "source": self.source}
        made |= {"scratch": {name: one.plain() for name, one in self.scratch.items()}} if self.scratch else {}
        return made | ({"options": list(self.options)} if self.options else {})

    def json(self) -> str:
        return json.dumps(self.plain(), indent=1)

    @classmethod
    def of(cls, plain: Any, source: str | None = None, name: str = "") -> Solution:
        """From what JSON has, and a source that lies beside it. Raises BadArgument for another form than `json` gives."""
        if not isinstance(plain, Mapping):
            raise BadArgument("a solution is a JSON object")
        unknown = plain.keys() - {"name", "source", "launches", "scratch", "options"}
        if unknown:
            raise BadArgument(f"a solution has no {', '.join(sorted(map(str, unknown)))}; it has name, source, launches, scratch, options")
        source = plain.get("source", source)
        launches, scratch, options = plain.get("launches"), plain.get("scratch", {}), plain.get("options", [])
        if source is None or not isinstance(launches, list) or not isinstance(scratch, Mapping) or not isinstance(options, list):
            raise BadArgument("a solution has a source, a list `launches`, and may have an object `scratch` and a list `options`")
        try:
            made = [Launch(**{key: _tupled(value) for key, value in one.items()}) for one in launches]
            areas = {key: Scratch(**one) if isinstance(one, Mapping) else Scratch(*one) for key, one in scratch.items()}
        except (TypeError, AttributeError) as error:
            members = "a launch has entry, signature, grid, block, shared, cluster, cooperative, pdl; a scratch elements, dtype"
            raise BadArgument(f"{members}: {error}") from None
        return cls(source, made, areas, tuple(options), str(plain.get("name", name)))


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


# Files, which are read only.

FILE_MAX = 2 * Solution.SOURCE_MAX + (1 << 20)  # JSON writes some characters as several
_FRONT = re.compile(r"\s*/\*\s*kops\.solution\b(.*?)\*/", re.S)


def _read(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_MAX + 1)
    except OSError as error:
        raise BadArgument(f"{path}: {error.strerror}") from None
    if len(data) > FILE_MAX:
        raise BadArgument(f"{path} has more than {FILE_MAX} bytes: a source has at most {Solution.SOURCE_MAX}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise BadArgument(f"{path} is no text in UTF-8") from None


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadArgument(f"{path}: this is no JSON: {error}") from None


def load_solution(path: str | os.PathLike[str]) -> Solution:
    """The solution of a `.json`, or of a source that begins with the
    comment `/* kops.solution {"launches": [...]} */`."""
    file = Path(path)
    text = _read(file)
    if file.suffix == ".json":
        plain = _json(file, text)
        return Solution.of(plain, name=file.stem)
    front = _FRONT.match(text)
    if front is None:
        raise BadArgument(f"{file} does not begin with a comment /* kops.solution {{…}} */, which has its launches as JSON")
    plain = _json(file, front[1])
    if isinstance(plain, dict) and "source" in plain:
        raise BadArgument(f"{file}: the comment's JSON has a source, and the file is one")
    return Solution.of(plain, source=text, name=file.stem)


# Arguments of a draw

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
    names = dict(numbers)  # numbers and shapes, which every expression may name
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
