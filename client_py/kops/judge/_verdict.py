"""Verdicts, and how a part of a judgement says that the judgement is over. Verdicts are frozen, and the same after a way through JSON."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from html import escape
from pathlib import Path
from typing import Any

from .. import BadArgument, KopsError
from .._companions import BY_CODE, texts
from ..profiler._report import document, grid

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
        return text(self)

    def page(self, path: Any) -> None:
        """Writes the verdict as a page of HTML."""
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


# Verdicts as text, as a page of HTML that needs no other file, and as a leaderboard


# As text

WORDS = {
    "right": "right", "unproven": "unproven", "not_compiled": "does not compile", "refused": "refused", "wrong": "wrong",
    "faulted": "faults", "hangs": "hangs", "no_verdict": "no verdict",
}  # fmt: skip
LOG_LINES = 20


def plain(value: str) -> str:
    """A text of a stranger's: what a terminal could take for a command becomes `?`."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in value)


def _measured(name: str, one: Measured | None) -> list[list[str]]:
    if one is None:
        return []
    known = f"{texts.number(one.low)} to {texts.number(one.high)}" if one.low is not None else texts.NONE
    return [[name, texts.number(one.us), known, str(one.launches)]]


def _kind(verdict: Verdict) -> str:
    return WORDS[verdict.kind] + (f": {verdict.why}" if verdict.why else "")


def _figures(time: Time | None) -> list[str]:
    """Microseconds, speed-up, GB/s; a text is empty where there is no such number."""
    if time is None:
        return ["", "", ""]
    speedup = f"{time.speedup:.2f} ×" if time.speedup is not None else ""
    return [texts.number(time.us), speedup, texts.number(time.gb_s) if time.gb_s is not None else ""]


def summary(verdicts: Sequence[Verdict]) -> str:
    """A row for each verdict, the fastest right solution first."""
    ordered = sorted(verdicts, key=lambda one: (not one.right, one.kind != "unproven", one.time.us if one.time is not None else math.inf))
    rows = [["solution", "verdict", "us", "speed-up", ""]]
    rows += [[one.solution, _kind(one), *(figure or texts.NONE for figure in _figures(one.time)[:2]), one.text] for one in ordered]
    return texts.layout([[plain(cell).replace("\n", " ")[: texts.CELL_MAX] for cell in cells] for cells in rows], "llrrl")


def _roof(time: Time) -> str:
    if time.roof is None:
        return ""
    of = f" of {time.roof_of}" if time.flops else ""
    with_dtype = f" with {time.dtype}" if time.roof_of == "arithmetic" else ""
    return f"{100 * time.roof:.0f} % of the roof{of}{with_dtype}, bound by {time.bound}"


def text(verdict: Verdict) -> str:
    """All that a verdict says."""
    names = " ".join(filter(None, (verdict.task, verdict.solution)))
    lines = [f"{names + ': ' if names else ''}{WORDS[verdict.kind]}" + (f" ({verdict.why})" if verdict.why else "")]
    lines += [f"  {verdict.text}"] if verdict.text else []
    if verdict.fault is not None and verdict.fault.text and verdict.fault.text not in verdict.text:
        lines.append(f"  {verdict.fault.text}")
    if verdict.log:
        shown = verdict.log.splitlines()
        lines += [f"  | {line}" for line in shown[:LOG_LINES]]
        lines += [f"  | … {len(shown) - LOG_LINES} more lines"] if len(shown) > LOG_LINES else []
    if verdict.cases:
        lines.append(f"  right in {verdict.launches} launches of {len(verdict.cases)} cases: {'; '.join(verdict.cases)}")
    time = verdict.time
    if time is not None:
        parts = [line for name in ("cold", "warm", "baseline") for line in _measured(name, getattr(time, name))]
        rows = [["", "us", "95 %", "launches"], *parts]
        lines += [f"  {line}" for line in texts.layout(rows, "lrrr").splitlines()]
        facts = [f"{time.speedup:.2f} × the baseline's speed" if time.speedup is not None else ""]
        facts.append(f"{time.gb_s:,.0f} GB/s" if time.gb_s is not None else "")
        facts.append(f"{time.gflop_s:,.0f} GFLOP/s" if time.gflop_s is not None else "")
        facts.append(_roof(time))
        lines += [f"  {', '.join(filter(None, facts))}"] if any(facts) else []
    where = {"gpu": f"on {verdict.device}", "interpreter": "in the interpreter, without times"}.get(verdict.how, "")
    lines += [f"  {where}, in {verdict.seconds:.2f} s"] if where else []
    lines += [f"  WARNING: {one}" for one in verdict.warnings]
    return plain("\n".join(lines))


# As a page

MORE = """
.right { color: var(--c2); } .wrong, .faulted, .hangs, .not_compiled, .refused { color: var(--c1); }
.no_verdict, .unproven { color: var(--rest); }
pre { background: var(--stripe); padding: .6em; overflow-x: auto; } td.text { white-space: normal; }
"""
WIDTH, BAR, LEFT = 860, 22, 220


def escaped(text: object) -> str:
    return escape(plain(str(text)))


def _write(path: str | os.PathLike[str], what: str, title: str, parts: Iterable[str]) -> None:
    """Writes a page, .html. Raises BadArgument for another kind of file, which says `what` it was to be."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise BadArgument(f"{what} a page, .html; not {os.fspath(path)!r}")
    Path(path).write_text(document(title, parts, MORE), encoding="utf-8")


def _right(verdicts: Sequence[Verdict]) -> str:
    return f"<p>{sum(one.right for one in verdicts)} of {len(verdicts)} solutions are right.</p>"


def _row(number: int, one: Verdict) -> list[str | tuple[str, str]]:
    name, kind = f'<a href="#v{number}">{escaped(one.solution or number)}</a>', (f"l {one.kind}", escaped(_kind(one)))
    return [("l", escaped(one.task)), ("l", name), kind, *_figures(one.time), ("l text", escaped(one.text))]


def _bar(name: str, one: Measured, at: int, scale: float, colour: str) -> str:
    low, high = one.low if one.low is not None else one.us, one.high if one.high is not None else one.us
    y = 20 + at * BAR
    middle = y + 7
    return (
        f'<text x="4" y="{y + 12}">{escaped(name[:34])}</text>'
        f'<rect x="{LEFT}" y="{y}" width="{one.us * scale:.1f}" height="14" style="fill:{colour}"/>'
        f'<line x1="{LEFT + low * scale:.1f}" x2="{LEFT + high * scale:.1f}" y1="{middle}" y2="{middle}" stroke="currentColor"/>'
        f'<text class="over" x="{LEFT + one.us * scale + 6:.1f}" y="{y + 12}">{texts.number(one.us)} µs</text>'
    )


def times(verdicts: Sequence[Verdict]) -> str:
    """Bars with the intervals in which the medians lie."""
    bars: list[tuple[str, Measured, str]] = []
    for one in sorted((v for v in verdicts if v.time is not None), key=lambda v: v.time.us if v.time else 0):
        assert one.time is not None
        for name, colour in (("cold", "var(--c0)"), ("warm", "var(--c4)"), ("baseline", "var(--rest)")):
            measured = getattr(one.time, name)
            if measured is not None:
                bars.append((f"{one.solution or one.task}, {name}", measured, colour))
    if not bars:
        return ""
    most = max(measured.high or measured.us for _, measured, _ in bars)
    scale = (WIDTH - LEFT - 90) / most if most else 1.0
    body = "".join(_bar(name, measured, at, scale, colour) for at, (name, measured, colour) in enumerate(bars))
    drawing = f'<svg viewBox="0 0 {WIDTH} {40 + BAR * len(bars)}" font-family="sans-serif" font-size="12">{body}</svg>'
    return f'<h2>Times</h2><p class="note">Medians, with their intervals of 95 %.</p><div class="wide">{drawing}</div>'


def _details(number: int, one: Verdict) -> str:
    head = f'<h2 id="v{number}" class="{one.kind}">{escaped(one.solution or number)}: {escaped(WORDS[one.kind])}</h2>'
    parts = [head, f"<pre>{escaped(one)}</pre>"]
    if one.log:
        parts.append(f"<details><summary>The compiler's log</summary><pre>{escaped(one.log)}</pre></details>")
    return "".join(parts)


def write(verdicts: Sequence[Verdict], path: str | os.PathLike[str]) -> None:
    """Writes verdicts as a page, .html."""
    heads = (("l", "task"), ("l", "solution"), ("l", "verdict"), "µs", "speed-up", "GB/s", ("l", ""))
    listed = grid(heads, (_row(number, one) for number, one in enumerate(verdicts)))
    details = (_details(number, one) for number, one in enumerate(verdicts))
    parts = [f"<h1>Verdicts</h1>{_right(verdicts)}", listed, times(verdicts), *details]
    _write(path, "the verdicts are written as", "kops judge", parts)


# As a leaderboard

LINE_MAX = 8 << 20


def load_verdicts(path: str | os.PathLike[str]) -> list[Verdict]:
    """The verdicts of a file that has one as JSON a line, as `kopsctl judge --json` prints them. Raises BadArgument."""
    found = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if len(line) > LINE_MAX:
                    raise BadArgument(f"{os.fspath(path)}:{number}: no verdict is that long")
                if line.strip():
                    found.append(Verdict.of(line))
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, BadArgument):
            raise
        raise BadArgument(f"{os.fspath(path)}: {error}: it should have a verdict as JSON a line") from None
    return found


def ranked(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The best of each solution by its name: right ones by their time, then right ones without times, then unproven ones, then the others
    as they came. Right ones alone have a place."""
    best: dict[str, Verdict] = {}
    for number, one in enumerate(verdicts):
        name = one.solution or f"#{number}"
        if name not in best or _order(one) < _order(best[name]):
            best[name] = one
    return sorted(best.values(), key=_order)


def _order(one: Verdict) -> tuple[int, float]:
    if one.right and one.time is not None and one.time.us == one.time.us:
        return 0, one.time.us
    return (1 if one.right else 2 if one.kind == "unproven" else 3), 0.0


def _ranks(order: Sequence[Verdict]) -> Iterator[list[str | tuple[str, str]]]:
    fastest = next((one.time.us for one in order if one.right and one.time is not None), None)
    for place, one in enumerate(order, 1):
        time = one.time if one.right else None
        us, speedup, gb_s = _figures(time)
        behind = f"{time.us / fastest:.2f} ×" if time is not None and fastest else ""
        kind, device = (f"l {one.kind}", escaped(_kind(one))), ("l", escaped(one.device))
        yield [str(place) if one.right else "", ("l", escaped(one.solution)), kind, us, behind, speedup, gb_s, device]


def _task(name: str, verdicts: Sequence[Verdict]) -> str:
    order = ranked(verdicts)
    heads = ("place", ("l", "solution"), ("l", "verdict"), "µs", "of the first", "of the baseline", "GB/s", ("l", "device"))
    return f"<h2>{escaped(name)}</h2>{_right(order)}{grid(heads, _ranks(order))}{times([one for one in order if one.right])}"


def leaderboard(verdicts: Iterable[Verdict], path: str | os.PathLike[str]) -> None:
    """Writes the page, .html. Verdicts of one task on several devices stand in one table, which has the devices' names."""
    tasks: dict[str, list[Verdict]] = {}
    for one in verdicts:
        tasks.setdefault(one.task, []).append(one)
    found = (_task(name, some) for name, some in tasks.items())
    _write(path, "a leaderboard is", "kops leaderboard", ["<h1>Leaderboard</h1>", *found])
