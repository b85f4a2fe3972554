"""Results of calls besides tensors: timings, profiles, and a daemon's description of itself."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from statistics import median
from typing import Any, Literal, TypeAlias

from . import intervals, table
from .conditions import Conditions
from .counters import Counters

Timing: TypeAlias = bool | Literal["exact"]
"""How a call is timed: not at all, by the best that is there when it has ended, or by the driver's records of its kernels."""


def known(cls: Any, reply: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a reply that a dataclass has; those of a newer daemon are left out."""
    names = {f.name for f in fields(cls)}
    return {key: value for key, value in reply.items() if key in names}


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
    sent_ns: int | None = None  # the call began in this process; as the next two by CLOCK_MONOTONIC
    received_ns: int | None = None  # the daemon had decoded the request
    seen_ns: int | None = None  # this process had the reply
    exclusive: bool | None = None  # of work that was to be alone on its GPU: whether it was all the time
    timer: str = ""  # told `gpu_us` or `host_us`: "cupti" (the driver's records), "kernel" (it, by the GPU's clock), "events", "host"

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
        measured = [f"{name} {table.number(us)}" for name in _PARTS if (us := getattr(self, f"{name}_us")) is not None]
        parts = [", ".join(measured) + " us" if measured else "no times"]
        if self.samples:
            spread = [f"{name} {table.number(us)}" for name in _SPREAD if (us := getattr(self, name)) is not None]
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
        middle = median(ordered)
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
    interval: tuple[float, float] | None = None  # where the median lies, with 95 % confidence; None: too few samples
    until: float | None = None  # the half width of `interval` that was asked for, as a part of the median
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
        return ", ".join([f"{self.op} {table.shapes(self.shapes)} {self.dtype}".rstrip(), *self.timings._where])

    def _cells(self) -> dict[str, str]:
        spread = {f"{name} us": table.number(getattr(self, name)) for name in _SPREAD}
        interval = " to ".join(map(table.number, self.interval)) if self.interval else table.NONE
        rates = {"GB/s": table.number(self.gb_s), "GFLOP/s": table.number(self.gflop_s)}
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
        lines = [self._title, table.layout([list(cells), list(cells.values())], "r" * len(cells))]
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


@dataclass(frozen=True)
class Device:
    """A device that the daemon runs ops on."""

    index: int
    name: str
    uuid: str
    backend: str
    memory_bytes: int = 0
    compute_units: int = 0
    arch: str = ""
    default: bool = False
    mps: bool = False  # shared by CUDA's Multi-Process Service: a fault of any process there ends all


@dataclass(frozen=True)
class Attr:
    """An attribute of an op."""

    name: str
    type: str
    default: Any = None
    choices: tuple[str, ...] = ()
    doc: str = ""


@dataclass(frozen=True, repr=False)
class Op:
    """An op that the daemon runs."""

    name: str
    summary: str = ""
    doc: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    in_dtypes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    out_dtypes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    attrs: tuple[Attr, ...] = ()
    variants: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __repr__(self) -> str:
        taken = [*self.inputs, *(f"{attr.name}={attr.default!r}" for attr in self.attrs)]
        return f"<kops.Op {self.name}({', '.join(taken)}): {self.summary}>"


@dataclass(frozen=True, repr=False)
class Info:
    """The answer to `hello`. `print(k.info)` lists it."""

    server: str
    protocol: int
    protocol_min: int
    pid: int
    devices: tuple[Device, ...]
    ops: dict[str, Op]
    limits: dict[str, int]
    features: tuple[str, ...]
    kernels: dict[str, Any] = field(default_factory=dict)  # of the user's own: `compiler`, `arch`, `policy`, `allowed`
    instance: str = ""  # 32 digits that this start of the daemon has made up
    connection: int = 0  # the number of this client's connection; 0: the daemon is too old to tell
    isolation: str = ""  # what shares a process with the client's kernels: "off", "none", "user", "connection"; "" of an older daemon
    identity: str = ""  # the socket's that the client connected to, which counts in place of its user; "": the daemon's own

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

    @classmethod
    def of(cls, reply: Mapping[str, Any]) -> Info:
        return cls(
            server=reply.get("server", ""),
            protocol=reply.get("protocol", 1),
            protocol_min=reply.get("protocol_min", 1),
            pid=reply.get("pid", 0),
            devices=tuple(Device(**known(Device, device)) for device in reply.get("devices", ())),
            ops={op["name"]: _op(op) for op in reply.get("ops", ())},
            limits=dict(reply.get("limits", {})),
            features=tuple(reply.get("features", ())),
            kernels=dict(reply.get("kernels", {})),
            instance=reply.get("instance", ""),
            isolation=reply.get("isolation", ""),
            identity=reply.get("identity", ""),
            connection=reply.get("connection", 0),
        )


def _op(reply: Mapping[str, Any]) -> Op:
    members = known(Op, reply)
    for key in ("inputs", "outputs", "dtypes"):
        members[key] = tuple(members.get(key, ()))
    members["attrs"] = tuple(Attr(**{**known(Attr, attr), "choices": tuple(attr.get("choices", ()))}) for attr in reply.get("attrs", ()))
    for key in ("variants", "in_dtypes", "out_dtypes"):
        members[key] = {name: tuple(names) for name, names in reply.get(key, {}).items()}
    return Op(**members)
