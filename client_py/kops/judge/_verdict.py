"""Verdicts, and how a part of a judgement says that the judgement is over. Verdicts are frozen, and the same after a way through JSON."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from .. import BadArgument, KopsError
from .._companions import BY_CODE

KINDS = ("right", "unproven", "not_compiled", "refused", "wrong", "faulted", "hangs", "no_verdict")
REASONS = ("value", "precision", "small", "input_changed", "untouched", "unstable", "time_disagrees")  # reasons for the verdict `wrong`
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class Worst:
    """The element that is furthest from right. `output` may be an input's name, where that was changed. `wrong` elements of `of`
    are. Of "precision", `got` and `expected` are the root mean squares of errors: the solution's, and the largest that is right. Of
    "small" they are how many elements are right by `atol` alone, and how many may be."""

    why: str
    output: str = ""
    index: tuple[int, ...] = ()
    got: float | int = 0
    expected: float | int = 0
    case: str = ""
    draw: int = 0
    wrong: int = 0
    of: int = 0


@dataclass(frozen=True)
class Fault:
    """A fault of a kernel. `block`, `thread`, `line` and the text are the interpreter's, which found the fault in a small case;
    `driver` is what the GPU's driver said."""

    kernel: str
    text: str = ""
    what: str = ""  # the interpreter's word for it: out_of_bounds, race, …
    block: tuple[int, ...] | None = None
    thread: tuple[int, ...] | None = None
    line: int | None = None
    driver: str = ""


@dataclass(frozen=True)
class Measured:
    """A median in microseconds, where it lies with 95 % confidence, and of how many launches."""

    us: float
    low: float | None = None
    high: float | None = None
    launches: int = 0


@dataclass(frozen=True)
class Time:
    """How long the timed case takes on the GPU: all launches of the solution together."""

    case: str
    cold: Measured | None = None  # with none of the operands in the L2 cache
    warm: Measured | None = None
    baseline: Measured | None = None  # measured in turns with `cold`, where that is there, else with `warm`
    speedup: float | None = None  # the baseline's time over the solution's
    speedup_low: float | None = None
    speedup_high: float | None = None
    wall_us: float | None = None  # mean by the daemon's own clock over these launches
    timer: str = ""  # the source of the times
    bytes: int = 0  # inputs and outputs, each once
    gb_s: float | None = None
    roof: float | None = None  # fraction reached of the roof that bounds, by what the device was measured to do
    bound: str = ""  # limit of the whole solution: "memory", "arithmetic", "compute", "latency"; by its counters where it has one launch
    counters: Mapping[str, Any] = field(default_factory=dict)  # the device's counters, of the solution's first launch only
    roof_of: str = ""  # the roof that bounds: "memory", or "arithmetic", where the task says how many operations it takes
    memory_roof: float | None = None  # fractions reached of both roofs
    arithmetic_roof: float | None = None
    flops: float | None = None  # floating-point operations, by the task
    gflop_s: float | None = None
    dtype: str = ""  # dtype of the arithmetic
    counters_of: str = ""  # entry of the launch that `counters` are of

    @property
    def us(self) -> float:
        """The one number: cold where that was measured."""
        one = self.cold or self.warm
        return one.us if one is not None else math.nan


@dataclass(frozen=True)
class Verdict:
    """`kind` is one of KINDS. `text` says in a sentence what is wrong and what to do. `how` is "gpu" or "interpreter": the latter
    runs small cases and measures no time. "unproven": nothing is wrong in the cases that ran, and others of the task did not run."""

    kind: str
    text: str = ""
    task: str = ""
    solution: str = ""
    how: str = ""
    device: str = ""
    worst: Worst | None = None
    fault: Fault | None = None
    log: str = ""  # the compiler's
    time: Time | None = None
    cases: tuple[str, ...] = ()  # cases that were right; all of the task's where the verdict is "right"
    launches: int = 0  # launches of the solution that were checked
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0  # time that judging took

    @property
    def right(self) -> bool:
        return self.kind == "right"

    @property
    def why(self) -> str:
        """One of REASONS where the verdict is `wrong`."""
        return self.worst.why if self.worst is not None else ""

    def plain(self) -> dict[str, Any]:
        """As JSON has it: what is empty is left out, and numbers that JSON lacks are texts."""
        made: Any = _plain(asdict(self))
        return {key: value for key, value in made.items() if value not in (None, "", [], {})}

    def json(self, indent: int | None = None) -> str:
        return json.dumps(self.plain(), indent=indent, allow_nan=False)

    @classmethod
    def of(cls, plain: str | Mapping[str, Any]) -> Verdict:
        """From `json()` or `plain()`. Members of a newer version are left out."""
        given = json.loads(plain) if isinstance(plain, str) else dict(plain)
        if not isinstance(given, dict) or given.get("kind") not in KINDS:
            raise BadArgument("this is no verdict: it has no `kind`, or one that is not known here")
        made: Verdict = _made(cls, given)
        return made

    def __str__(self) -> str:
        from ._page import text

        return text(self)

    def page(self, path: Any) -> None:
        """Writes the verdict as a page of HTML."""
        from ._page import write

        write([self], path)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items() if one is not None}
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


_PARTS: dict[str, Any] = {"Worst | None": Worst, "Fault | None": Fault, "Time | None": Time, "Measured | None": Measured}  # by type


def _made(cls: Any, plain: Mapping[str, Any]) -> Any:
    members: dict[str, Any] = {}
    for one in fields(cls):
        if one.name not in plain:
            continue
        value = plain[one.name]
        if one.type in _PARTS and isinstance(value, Mapping):
            value = _made(_PARTS[str(one.type)], value)
        elif isinstance(value, list):
            value = tuple(value)
        elif isinstance(value, str) and one.type != "str":
            value = _NUMBERS.get(value, value)
        members[one.name] = value
    return cls(**members)


# Exceptions that end a judgement early. Inside this folder only: users see verdicts.

# Errors after which a connection, its process on the GPU, or its memory must not be used again; work may go on.
LOST = tuple(BY_CODE[code] for code in ("connection_lost", "connect_failed", "shutting_down", "device_lost", "timeout", "buffer_lost",
                                         "bad_reply", "stale_buffer", "internal"))  # fmt: skip


class Refused(KopsError):
    """The solution asks for something that is not to be had: its verdict is `refused`, and the text says what to change."""

    code = "bad_argument"


class TaskFault(KopsError):
    """The task itself is at fault: the verdict of each of its solutions is `no_verdict`, and the text says what to mend."""

    code = "bad_argument"


class BaselineFault(TaskFault):
    """The task's baseline faults, hangs or is wrong, and will again: it is not run for the task's other solutions."""


LOG_MAX = 32 << 10  # most characters kept of a compiler's log


def cut(log: str) -> str:
    return log if len(log) <= LOG_MAX else log[:LOG_MAX] + "\n… (cut)"


class Stop(Exception):
    """The judgement has ended; `members` are those of the verdict. `dirty`: what ran the solution is not used again."""

    def __init__(self, kind: str, text: str, dirty: bool = False, **members: Any) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.dirty = dirty
        if "log" in members:
            members["log"] = cut(members["log"])
        self.members = members


class Gone(Exception):
    """The runner of the solution went away, by no known fault of the solution, which is judged once more."""


@contextlib.contextmanager
def gone(why: str = "") -> Iterator[None]:
    """An error of a client in this block means that something went away."""
    try:
        yield
    except KopsError as error:
        raise Gone(f"{why}: {error.message}" if why else f"{error.message} [{error.code}]") from None


class Busy(Gone):
    """The GPU had other work until the deadline, and nothing of the launch has begun: it only waited, and waits again."""


class HeldBack(Gone):
    """The daemon refuses this user's kernels for a while, since earlier ones faulted: for so many seconds."""

    def __init__(self, text: str, seconds: float) -> None:
        super().__init__(text)
        self.seconds = seconds
