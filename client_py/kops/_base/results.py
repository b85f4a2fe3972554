"""Results of calls besides tensors: timings, profiles with what the device's speed depended on and what the GPU's counters say, what tuning
has chosen, and a daemon's description of itself.

The line of conditions that is printed is also kopsctl's (daemon/ctl/view/rows.c); tests/vectors/conditions.json holds both to it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

from . import intervals, texts
from .record import Record, known, several
from .records import Candidate, CountersBase, Device, OpBase

SLOWING = ("power_cap", "hw_slowdown", "thermal", "hw_thermal", "power_brake")  # reasons that a measurement should not have
SAME = 0.02  # clocks that differ by less are the same


@dataclass(frozen=True)
class Reading(Record):
    """A device at one time. None: the device does not tell; `missing` says why nothing is known, else it is empty.

    `clock_mhz` is of a GPU's multiprocessors, or of the host's fastest processor. `power_slowed_us` and `thermal_slowed_us`
    are how long power and heat have kept the clocks down since the driver began. `reasons` says why clocks are not higher: `idle`,
    `clocks_setting`, `power_cap`, `hw_slowdown`, `sync_boost`, `thermal`, `hw_thermal`, `power_brake`, `display`, `other`.
    """

    device: str = ""
    missing: str = ""
    clock_mhz: float | None = None
    clock_max_mhz: float | None = None
    memory_clock_mhz: float | None = None
    memory_clock_max_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_slowed_us: float | None = None
    thermal_slowed_us: float | None = None
    reasons: tuple[str, ...] = ()
    _converted = {"reasons": tuple}

    @classmethod
    def of(cls, map_: Mapping[str, Any], device: str = "") -> Reading:
        """From the conditions map of the wire."""
        return cls.read({**map_, "device": device})

    def __str__(self) -> str:
        return str(Conditions(self, self))


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _part(before: float | None, after: float | None, most: float | None, unit: str) -> str:
    """`1980 → 1590 of 1980 MHz`; nothing where nothing is known."""
    known = [_whole(value) for value in (before, after) if value is not None]
    if not known:
        return ""
    moved = known[0] if len(set(known)) == 1 else " → ".join(known)
    return f"{moved}{'' if most is None else f' of {_whole(most)}'} {unit}"


def _differs(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and abs(after - before) > SAME * max(before, after)


@dataclass(frozen=True)
class Conditions:
    """A device before and after a measurement. `print()` makes one line of it, with a warning where the device was slowed."""

    before: Reading
    after: Reading

    @property
    def missing(self) -> str:
        """Why nothing is known of one of the two readings, such as "no libnvidia-ml.so.1"; else empty."""
        return self.after.missing or self.before.missing

    @property
    def changed(self) -> bool:
        """The clocks were not the same before and after: by more than 2 %."""
        memory = _differs(self.before.memory_clock_mhz, self.after.memory_clock_mhz)
        return memory or _differs(self.before.clock_mhz, self.after.clock_mhz)

    @property
    def power_slowed_us(self) -> float | None:
        """How long power kept the clocks down between the readings."""
        return self._between("power_slowed_us")

    @property
    def thermal_slowed_us(self) -> float | None:
        """How long heat kept the clocks down between the readings."""
        return self._between("thermal_slowed_us")

    @property
    def throttled(self) -> tuple[str, ...]:
        """What kept the clocks down before, after or between: `power_cap`, `hw_slowdown`, `thermal`, `hw_thermal`, `power_brake`."""
        seen = {*self.before.reasons, *self.after.reasons}
        if (self.power_slowed_us or 0) > 0:
            seen.add("power_cap")
        if (self.thermal_slowed_us or 0) > 0 and not seen & {"thermal", "hw_thermal"}:
            seen.add("thermal")
        return tuple(reason for reason in SLOWING if reason in seen)

    @property
    def slowed(self) -> bool:
        """The times are longer than they need be: clocks were kept down, or fell."""
        fell = any(
            _differs(before, after) and after < before
            for before, after in (
                (self.before.clock_mhz, self.after.clock_mhz), (self.before.memory_clock_mhz, self.after.memory_clock_mhz),
            )
            if before is not None and after is not None
        )  # fmt: skip
        return bool(self.throttled) or fell

    @property
    def warning(self) -> str:
        """What to know before the times are believed; else empty."""
        if self.throttled:
            long = sum(us for us in (self.power_slowed_us, self.thermal_slowed_us) if us is not None and us > 0)
            return f"the clocks were kept down by {', '.join(self.throttled)}" + (f" (for {long / 1e3:.1f} ms)" if long else "")
        if self.slowed:
            return "the clocks fell while it was measured"
        if self.changed:
            return "the clocks rose while it was measured: more warmup makes the times alike"
        return ""

    def _between(self, name: str) -> float | None:
        before, after = getattr(self.before, name), getattr(self.after, name)
        return None if before is None or after is None else after - before

    def __str__(self) -> str:
        if self.after.missing:
            return f"clocks and temperature are not known: {self.after.missing}"
        a, b = self.before, self.after
        parts = [_part(a.clock_mhz, b.clock_mhz, b.clock_max_mhz, "MHz")]
        memory = _part(a.memory_clock_mhz, b.memory_clock_mhz, b.memory_clock_max_mhz, "MHz")
        parts += [memory and f"memory {memory}"]
        parts += [_part(a.temperature_c, b.temperature_c, None, "°C"), _part(a.power_w, b.power_w, b.power_limit_w, "W")]
        line = ", ".join(filter(None, parts))
        return f"{line}; WARNING: {self.warning}" if self.warning else line


CACHES = ("cold", "warm")  # the L2 cache is flushed before the execution that is read, or keeps the data of the execution before


@dataclass(frozen=True)
class Counters(CountersBase):
    """One execution of a kernel by the GPU's counters; `print` shows all of it.

    `verdict` is "memory", "compute" or "latency", and `why` the reason. `kernel` is the driver's name; one execution launches
    `kernels` of them, and the figures describe the longest one. `values` has the figures by name (PROTOCOL.md, Counters),
    `counters["dram_pct"]` is one of them, None where the device does not count it. `stalls`: what warps wait for, in percent of
    their time. `others`: processes of others that have a context on the device; None: not known."""

    cache: str = CACHES[0]

    @classmethod
    def of(cls, reply: Mapping[str, Any], cache: str) -> Counters:
        return cls.read({**reply, "cache": cache})

    def __getitem__(self, name: str) -> float | None:
        return self.values.get(name)

    def top_stalls(self, count: int = 3) -> list[tuple[str, float]]:
        """The reasons for which warps wait most."""
        waits = ((name, pct) for name, pct in self.stalls.items() if name not in _NO_WAITS and pct > 0)
        return sorted(waits, key=lambda one: -one[1])[:count]

    def _percent(self, name: str) -> str:
        value = self[name]
        return texts.NONE if value is None else f"{value:.1f} %"

    def _lines(self) -> list[tuple[str, str]]:
        """What is printed, a name and a text a line."""
        lines = [("duration", f"{texts.number(self['duration_us'])} us, caches {self.cache}, {self.passes} passes")]
        lines += [(title, ", ".join(f"{what} {self._percent(name)}" for what, name in parts)) for title, parts in _LINES]
        conflicts, wavefronts = self["bank_conflicts"], self["shared_wavefronts"]
        if conflicts is not None and wavefronts:
            lines.append(("bank conflicts", f"{conflicts:.0f} of {wavefronts:.0f} accesses of shared memory"))
        if self.launch is not None:
            launch = self.launch
            limited = launch.occupancy_pct is not None and launch.occupancy_pct < 100
            allowed = f", allowed {launch.occupancy_pct:.1f} % (limit: {_LIMITERS[launch.limiter]})" if limited else ""
            spilled = f", {launch.local_bytes} bytes of local memory (spills)" if launch.local_bytes else ", no spills"
            lines.append(("occupancy", f"achieved {self._percent('occupancy_pct')}{allowed}"))
            lines.append(("launch", f"grid {_by(launch.grid)}, block {_by(launch.block)}, {launch.registers} registers{spilled}"))
        else:
            lines.append(("occupancy", f"achieved {self._percent('occupancy_pct')}"))
        stalls = ", ".join(f"{name} {pct:.0f} %" for name, pct in self.top_stalls())
        lines.append(("warps wait for", stalls or texts.NONE))
        if self.others:
            lines.append(("beware", f"{self.others} other processes have the GPU: figures of L2 and DRAM may be theirs, too"))
        return lines

    def __str__(self) -> str:
        of = f", the longest of {self.kernels} kernels" if self.kernels > 1 else ""
        lines = self._lines()
        width = max(len(title) for title, _ in lines)
        head = f"{self.kernel or 'the kernel'} is bound by {self.verdict}{of}: {self.why}"
        return "\n".join([head, *(f"  {title:<{width}}  {text}" for title, text in lines)])


def _by(sizes: tuple[int, ...]) -> str:
    return " x ".join(map(str, sizes))


_NO_WAITS = ("selected", "not_selected")
_LIMITERS = {"warps": "block size", "blocks": "blocks", "registers": "registers", "shared_memory": "shared memory"}
_LINES = (
    ("of peak", (("DRAM", "dram_pct"), ("L2", "l2_pct"), ("L1", "l1_pct"), ("SM", "sm_pct"))),
    ("in use", (("tensor cores", "tensor_pct"), ("issue slots", "issue_pct"))),
    ("cache hits", (("L2", "l2_hit_pct"), ("L1", "l1_hit_pct"))),
)


@dataclass(frozen=True)
class Tuned:
    """The result of `Client.tune`. `best` runs from now on, for every client; `before` ran until now, and is `best` where nothing
    is faster beyond noise; `usual` runs where nothing was tuned. `noise` is the wider of the spreads of `best` and `before`, as a
    part of their time; `took_us` how long the reply took. `machine` says for which kind of GPU, driver and library it holds. `tried` is
    how many of the candidates tunings of this problem have tried so far: the next one goes on with the others (None: an older daemon).
    `goes_on`: there was no time to measure before the reply. It is done after it."""

    device: str
    machine: str
    problem: str
    candidates: tuple[Candidate, ...]
    best: Candidate
    before: Candidate
    usual: Candidate
    noise: float
    took_us: float
    tried: int | None = None
    goes_on: bool = False

    @property
    def gain(self) -> float | None:
        """How many times faster `best` is than `usual`; None where the usual one cannot run."""
        return self.usual.us / self.best.us if self.usual.us and self.best.us else None

    def __str__(self) -> str:
        timed = sorted((c for c in self.candidates if c.us is not None), key=lambda c: c.us or 0.0)
        rows = [
            [c.what, texts.number(c.us), c.state, " ".join(n for n in ("best", "before", "usual") if getattr(self, n) is c)]
            for c in timed
        ]
        head = f"{self.problem}: {self.best.what}"
        if self.gain is not None:
            head += f", {self.gain:.3g} × as fast as without tuning"
        if self.tried is not None and self.tried < len(self.candidates):
            head += f", of {self.tried} of {len(self.candidates)} candidates so far"
        if self.goes_on:
            head += " (still measuring)"
        return "\n".join([head, texts.layout([["candidate", "us", "state", ""], *rows], "lrll")])


def tuned_of(reply: Mapping[str, Any]) -> Tuned:
    candidates = tuple(map(Candidate.read, reply["candidates"]))
    members = known(Tuned, reply)
    chosen = {name: candidates[members[name]] for name in ("best", "before", "usual")}
    return Tuned(**{**members, "candidates": candidates, **chosen})


Timing: TypeAlias = bool | Literal["exact"]
"""How a call is timed: not at all, by the best that is there when it has ended, or by the driver's records of its kernels."""


@dataclass(frozen=True)
class Timings:
    """Where the time of one request went, in microseconds by the daemon's clocks. None: it was not measured.

    `gpu_us` or `host_us` is one execution, the median of them with `repeat` > 1; `total_us` runs from
    the request's decoding to the reply's encoding and so leaves out the socket. `min` to `samples` only with `repeat` >
    1. Where the GPU tells when it began, `recv_to_start_us`, `wait_us` (the launch, and other processes' time slices),
    `gpu_us` and `end_us` (until the reply) add up to `total_us`. With `send_us` before and `reply_us` behind it that is all of
    a blocking call. `times` has the same as absolute times.

    `wall_us` is what the daemon's own clock says: from handing the work to the process that runs it to seeing the end of its last
    execution, warm-up, gaps and earlier work of the stream included. The other execution times are claims of the process in which
    the kernels run.
    """

    recv_to_start_us: float | None = None
    map_us: float | None = None
    queue_us: float | None = None
    wait_us: float | None = None
    h2d_us: float | None = None
    d2h_us: float | None = None
    gpu_us: float | None = None
    host_us: float | None = None
    end_us: float | None = None
    total_us: float | None = None
    wall_us: float | None = None
    min: float | None = None
    median: float | None = None
    p90: float | None = None
    max: float | None = None
    samples: tuple[float, ...] = ()
    device: str = ""
    variant: str = ""
    sent_ns: int | None = None  # time when the call began in this process; like the next two by CLOCK_MONOTONIC
    received_ns: int | None = None  # time when the daemon had decoded the request
    seen_ns: int | None = None  # time when this process had the reply
    exclusive: bool | None = None  # whether the work was alone on its GPU all the time, where that was asked for
    timer: str = ""  # source of `gpu_us` or `host_us`: "cupti" (driver's records), "kernel" (itself, by the GPU's clock), "events", "host"

    @property
    def exec_us(self) -> float | None:
        """`gpu_us`, or `host_us` on the host."""
        return self.host_us if self.gpu_us is None else self.gpu_us

    @property
    def send_us(self) -> float | None:
        """From the call's begin in this process to the daemon."""
        return self._ways[0]

    @property
    def reply_us(self) -> float | None:
        """From the daemon's reply to this process."""
        return self._ways[1]

    @property
    def _ways(self) -> tuple[float | None, float | None]:
        """None where the clocks have nothing to do with each other: the daemon may live in another time namespace."""
        if self.sent_ns is None or self.received_ns is None or self.seen_ns is None or self.total_us is None:
            return None, None
        replied = self.received_ns + self.total_us * 1e3
        if not self.sent_ns <= self.received_ns <= replied <= self.seen_ns:
            return None, None
        return (self.received_ns - self.sent_ns) / 1e3, (self.seen_ns - replied) / 1e3

    @property
    def times(self) -> dict[str, int]:
        """The request's way in absolute times, ns of CLOCK_MONOTONIC: "sent" by this process, "received" by the daemon, "submitted"
        to the device, "started" and "ended" there, "replied", "seen" by this process. What is not known is left out."""
        if self.received_ns is None:
            return {}
        submitted = _sum(self.recv_to_start_us)
        after = {
            "received": 0.0, "submitted": submitted, "started": _sum(submitted, self.wait_us),
            "ended": _sum(self.total_us, None if self.end_us is None else -self.end_us), "replied": self.total_us,
        }  # fmt: skip
        made = {name: self.received_ns + round(us * 1e3) for name, us in after.items() if us is not None}
        if self._ways[0] is not None and self.sent_ns is not None and self.seen_ns is not None:
            made = {"sent": self.sent_ns, **made, "seen": self.seen_ns}
        return made

    @classmethod
    def of(cls, reply: Mapping[str, Any], sent_ns: int | None = None) -> Timings:
        """From the result of `run`, now that it is here; keys that are not known here are left out."""
        times = {key: value for key, value in reply.get("timings", {}).items() if key in _TIMINGS}
        if "samples" in times:
            times["samples"] = tuple(times["samples"])
        return cls(
            **times, device=reply.get("device", ""), variant=reply.get("variant", ""), timer=reply.get("timer", ""),
            exclusive=reply.get("exclusive"), sent_ns=sent_ns, seen_ns=time.monotonic_ns(),
        )  # fmt: skip

    def __str__(self) -> str:
        measured = [f"{name} {texts.number(us)}" for name in _PARTS if (us := getattr(self, f"{name}_us")) is not None]
        parts = [", ".join(measured) + " us" if measured else "no times"]
        if self.samples:
            spread = [f"{name} {texts.number(us)}" for name in _SPREAD if (us := getattr(self, name)) is not None]
            parts.append(f"{len(self.samples)} executions: {', '.join(spread)} us")
        return "; ".join([*parts, *self._where])

    @classmethod
    def made(cls, values: tuple[Any, ...], sent_ns: int) -> Timings:
        """From the times of one execution in the order of `_OF_ONE`, now that they are here. Quicker than the constructor, which sets
        a member at a time; members that are not set have the class's defaults."""
        timings = object.__new__(cls)
        members = timings.__dict__
        members.update(zip(_OF_ONE, values, strict=True))
        members["sent_ns"], members["seen_ns"] = sent_ns, time.monotonic_ns()
        return timings

    def with_samples(self, samples: tuple[float, ...]) -> Timings:
        """The same with these samples, and what follows from them."""
        ordered = sorted(samples)
        middle = intervals.median(ordered)
        p90 = intervals.percentile(ordered, 0.9)
        gpu, host = (middle, None) if self.host_us is None else (None, middle)
        return replace(self, samples=samples, min=ordered[0], median=middle, p90=p90, max=ordered[-1], gpu_us=gpu, host_us=host)

    @property
    def _where(self) -> list[str]:
        """`simd on host`; nothing where neither is known."""
        return [" on ".join(filter(None, (self.variant, self.device)))] if self.variant or self.device else []


_PARTS = (
    "send", "recv_to_start", "map", "queue", "wait", "h2d", "gpu", "host", "d2h", "end", "total", "reply",
)  # in the order of a request  # fmt: skip
_SPREAD = ("min", "median", "p90", "max")
_TIMINGS = {f.name for f in fields(Timings)} - {"device", "variant", "timer", "exclusive", "sent_ns", "seen_ns"}
_OF_ONE = (
    "recv_to_start_us", "map_us", "queue_us", "wait_us", "h2d_us", "d2h_us", "gpu_us", "host_us", "end_us", "total_us", "wall_us",
    "device", "variant", "timer", "received_ns",
)  # fmt: skip


def _sum(*times_us: float | None) -> float | None:
    return None if None in times_us else sum(us for us in times_us if us is not None)


@dataclass(frozen=True)
class Profile:
    """The timed executions of one op. Times in microseconds; `median`, … are over `samples`.

    `bytes` counts every element of every operand once, `operations` the floating-point operations that the op's
    declaration states; both of one execution.
    """

    op: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]  # inputs, then outputs
    timings: Timings
    bytes: int
    operations: int | None
    interval: tuple[float, float] | None = None  # interval of the median, with 95 % confidence; None: too few samples
    until: float | None = None  # half width of `interval` that was asked for, as a fraction of the median
    conditions: Conditions | None = None  # clocks, temperature and power, before and after; None: they were not asked for
    counters: Counters | None = None  # with `counters=True`

    @property
    def device(self) -> str:
        return self.timings.device

    @property
    def variant(self) -> str:
        return self.timings.variant

    @property
    def samples(self) -> tuple[float, ...]:
        if self.timings.samples:
            return self.timings.samples
        one = self.timings.exec_us
        return () if one is None else (one,)

    def _of(self, measured: float | None) -> float | None:
        return self.timings.exec_us if measured is None else measured

    @property
    def min(self) -> float | None:
        return self._of(self.timings.min)

    @property
    def median(self) -> float | None:
        return self._of(self.timings.median)

    @property
    def p90(self) -> float | None:
        return self._of(self.timings.p90)

    @property
    def max(self) -> float | None:
        return self._of(self.timings.max)

    @property
    def width(self) -> float:
        """The half width of `interval` as a part of the median."""
        return intervals.width(self.interval, self.median or 0.0)

    @property
    def reached(self) -> bool:
        """The median is known as well as `until` asked for."""
        return self.until is None or self.width <= self.until

    @property
    def gb_s(self) -> float | None:
        """10^9 bytes a second at the median."""
        return self.bytes / self.median / 1e3 if self.median else None

    @property
    def gflop_s(self) -> float | None:
        """10^9 floating-point operations a second at the median."""
        return self.operations / self.median / 1e3 if self.median and self.operations is not None else None

    @property
    def _title(self) -> str:
        return ", ".join([f"{self.op} {texts.shapes(self.shapes)} {self.dtype}".rstrip(), *self.timings._where])

    def _cells(self) -> dict[str, str]:
        spread = {f"{name} us": texts.number(getattr(self, name)) for name in _SPREAD}
        interval = " to ".join(map(texts.number, self.interval)) if self.interval else texts.NONE
        rates = {"GB/s": texts.number(self.gb_s), "GFLOP/s": texts.number(self.gflop_s)}
        return {"n": str(len(self.samples)), **spread, "interval us": interval, **rates}

    def _notes(self) -> list[str]:
        notes = []
        if not self.reached:
            known = "not known" if math.isinf(self.width) else f"known within {100 * self.width:.3g} %"
            notes.append(f"WARNING: the median is {known}, not within the {100 * (self.until or 0):.3g} % of `until`")
        return notes if self.conditions is None else [*notes, str(self.conditions)]

    def __rich__(self) -> Any:
        """A table, for `rich.print(profile)`."""
        from rich.table import Table

        cells = self._cells()
        made = Table(title=self._title, caption="\n".join(self._notes()) or None)
        for name in cells:
            made.add_column(name, justify="right")
        made.add_row(*cells.values())
        return made

    def __str__(self) -> str:
        cells = self._cells()
        lines = [self._title, texts.layout([list(cells), list(cells.values())], "r" * len(cells))]
        lines += self._notes()
        if self.counters is not None:
            lines.append(str(self.counters))
        return "\n".join(lines)


@dataclass(frozen=True)
class Comparison:
    """Two ways to do something, measured in turns. `ratio` is how much longer the second takes: the median over the rounds of the
    ratio of both medians; `interval` is where that lies with 95 % confidence. `real`: the interval leaves 1 out.
    `first` and `second` are the last round's profiles, `conditions` the device's before and after all of it."""

    first: Profile
    second: Profile
    ratio: float
    interval: tuple[float, float]
    rounds: int
    conditions: Conditions | None = None

    @property
    def real(self) -> bool:
        return not self.interval[0] <= 1 <= self.interval[1]

    def __str__(self) -> str:
        low, high = self.interval
        verdict = f"{'slower' if self.ratio > 1 else 'faster'}" if self.real else "no difference that can be told from noise"
        line = f"the second takes {self.ratio:.3f} × the first's time ({low:.3f} to {high:.3f}, {self.rounds} rounds): {verdict}"
        return line if self.conditions is None or self.conditions.missing else f"{line}\n{self.conditions}"


@dataclass(frozen=True, repr=False)
class Op(OpBase):
    """An op that the daemon runs."""

    def __repr__(self) -> str:
        taken = [*self.inputs, *(f"{attr.name}={attr.default!r}" for attr in self.attrs)]
        return f"<kops.Op {self.name}({', '.join(taken)}): {self.summary}>"


@dataclass(frozen=True, repr=False)
class Info(Record):
    """The answer to `hello`. `print(k.info)` lists it."""

    server: str = ""
    protocol: int = 1
    protocol_min: int = 1
    pid: int = 0
    devices: tuple[Device, ...] = ()
    ops: dict[str, Op] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    kernels: dict[str, Any] = field(default_factory=dict)  # users' kernels: `compiler`, `arch`, `policy`, `allowed`
    instance: str = ""  # 32 random digits that name this start of the daemon
    connection: int = 0  # number of this client's connection; 0: the daemon is too old to tell
    isolation: str = ""  # work that shares a process with the client's kernels: "none", "user", "connection"; "" from an older daemon
    identity: str = ""  # the identity socket that the client connected to: limits count for it, not for the user; "": none
    _converted = {"devices": several(Device.read), "ops": lambda ops: {op["name"]: Op.read(op) for op in ops}, "features": tuple}

    def __repr__(self) -> str:
        devices = ", ".join(device.name for device in self.devices)
        return f"<kops.Info {self.server}, pid {self.pid}, on {devices or 'no device'}, with {', '.join(self.ops)}>"

    def __str__(self) -> str:
        lines = [f"{self.server}, pid {self.pid}, protocol {self.protocol}"]
        lines += [f"device {d.index}: {d.name} ({d.backend}, {d.uuid})" + (", the default" if d.default else "") for d in self.devices]
        lines += [f"op {op.name}({', '.join(op.inputs)}): {op.summary}; {', '.join(op.dtypes)}" for op in self.ops.values()]
        lines.append("features: " + (", ".join(self.features) or "none"))
        lines.append("limits: " + ", ".join(f"{name} {value}" for name, value in self.limits.items()))
        lines.append("kernels of your own: " + (", ".join(f"{name} {value}" for name, value in self.kernels.items()) or "not known here"))
        lines += [f"isolation: {self.isolation}"] if self.isolation else []
        lines += [f"identity: {self.identity}"] if self.identity else []
        return "\n".join(lines)
