"""What a stranger hands in: a CUDA source, and how its kernels are launched. Nothing here runs any of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .. import BadArgument, KopsError, Param
from .._companions import DTYPES, parse
from ._errors import Refused
from ._task import NAME

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
        """The parameters. Raises Refused."""
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
        """As JSON has it."""
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
