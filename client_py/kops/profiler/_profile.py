"""The profiler: records steps by a schedule, and hands out what it recorded. Its arguments are those of `torch.profiler.profile`."""

from __future__ import annotations

import gzip
import json
import os
import socket as sockets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from .. import BadArgument, Device
from .._companions import intervals, texts, warn
from . import _recorder
from ._chrome import Trace
from ._recorder import Event, Recorder, Span, Watch, clock, match

GROUPS = ("op", "dtype", "shapes", "variant", "device", "client", "stack")
TORCH = {  # torch's sort keys, and the columns they mean
    **{f"{self}{device}_time_total": "total" for self in ("", "self_") for device in ("cuda", "device")},
    **{f"{device}_time": "mean" for device in ("cuda", "device")},
    "self_cpu_time_total": "cpu_time_total",
}
NOT_MEASURED = ("memory_usage", "flops", "xpu_time")


@dataclass
class Average:
    """Requests of one kind. `count` requests with `executions` executions; device times in microseconds of one execution, None
    where the device did none; `share` of the time of all rows."""

    key: tuple[str, ...]
    count: int = 0
    executions: int = 0
    total: float = 0.0
    queue: float = 0.0  # the mean from `ready` to `started`
    latency: float = 0.0  # the mean from `received` to `ended`
    send: float | None = None  # for calls that waited: mean from the call's begin to `received`
    reply: float | None = None  # for calls that waited: mean from `ended` to the call's end
    cpu_time_total: float = 0.0  # time of the calls that made these requests, in this process
    share: float = 0.0
    failed: int = 0
    _each: list[float] = field(default_factory=list, repr=False)
    _ways: list[tuple[float, float]] = field(default_factory=list, repr=False)

    def __getattr__(self, name: str) -> Any:
        if name in TORCH:
            return getattr(self, TORCH[name])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def cpu_time(self) -> float:
        return self.cpu_time_total / self.count if self.count else 0.0

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self._each) if self._each else None

    def percentile(self, p: float) -> float | None:
        if not self._each:
            return None
        return intervals.percentile(sorted(self._each), p)

    @property
    def p50(self) -> float | None:
        return self.percentile(0.5)

    @property
    def p99(self) -> float | None:
        return self.percentile(0.99)


class Averages(list[Average]):
    """Rows, and the table of them."""

    def __init__(self, rows: Iterable[Average], groups: Sequence[str]) -> None:
        super().__init__(rows)
        self.groups = tuple(groups)

    def __str__(self) -> str:
        return self.table()

    def table(
        self, sort_by: str | None = "total", row_limit: int = 100, max_src_column_width: int = 75, max_name_column_width: int = 55,
        max_shapes_column_width: int = 80, header: str | None = None, top_level_events_only: bool = False,
    ) -> str:  # fmt: skip
        """The rows as text, the largest first by `sort_by`: "count", "executions", "total", "mean", "p50", "p99", "queue",
        "latency", "send", "reply", "cpu_time_total" or "cpu_time"; "cuda_time_total" and torch's other names of these. By a group's
        name: in the order of the alphabet. None: as they are. `row_limit` -1: all. All of them are top-level."""
        rows = self._sorted(sort_by)
        most = len(rows) if row_limit < 0 else row_limit
        times = ("mean", "p50", "p99", "queue", "latency", "send", "reply")
        head = [*self.groups, "calls", "executions", "total ms", "share %", *(f"{time} us" for time in times), "cpu us"]
        rest = f"\n... and {len(rows) - most} more" if len(rows) > most else ""
        align = "l" * len(self.groups) + "r" * (len(head) - len(self.groups))
        widths = {"op": max_name_column_width, "stack": max_src_column_width, "shapes": max_shapes_column_width}

        def keys(row: Average) -> list[str]:
            return [_cut(value, widths.get(group)) for group, value in zip(self.groups, row.key, strict=True)]

        made = texts.layout([head, *([*keys(row), *_cells(row)] for row in rows[:most])], align) + rest
        return f"{header}\n{made}" if header else made

    def _sorted(self, sort_by: str | None) -> list[Average]:
        columns = ("count", "executions", "total", "mean", "p50", "p99", "queue", "latency", "send", "reply", "cpu_time_total", "cpu_time")
        if sort_by is None:
            return list(self)
        if sort_by in self.groups:
            at = self.groups.index(sort_by)
            return sorted(self, key=lambda row: row.key[at])
        if sort_by in columns or sort_by in TORCH:
            return sorted(self, key=lambda row: -(getattr(row, sort_by) or 0))
        why = " is not measured" if any(name in str(sort_by) for name in NOT_MEASURED) else ""
        raise BadArgument(f"sort_by={sort_by!r}{why}: one of {', '.join((*columns, *TORCH, *self.groups))}")


def _cut(value: str, most: int | None) -> str:
    return value if most is None or len(value) <= max(most, 3) else f"{value[: max(most, 3) - 3]}..."


def _cells(row: Average) -> list[str]:
    times = (row.mean, row.p50, row.p99, row.queue, row.latency, row.send, row.reply, row.cpu_time or None)
    return [str(row.count), str(row.executions), texts.number(row.total / 1e3), f"{100 * row.share:.1f}", *map(texts.number, times)]


def _key(event: Event, group: str) -> str:
    if group == "op":
        return texts.text(event.label if event.what == "compile" or event.ops > 1 else event.op)
    if group == "shapes":
        return texts.shapes(event.shapes)
    if group == "client":
        return texts.text(f"{event.client or event.comm} ({event.pid})")
    return texts.text(getattr(event, group))


def averages(events: Iterable[Event], groups: Sequence[str], callers: Mapping[int, Span], lines: int = 1) -> Averages:
    """The events by these groups; `callers` as match() makes it, by `lines` of their stacks. A percentile is over
    requests: of each the mean of its executions."""
    wrong = [group for group in groups if group not in GROUPS]
    if wrong or not groups:
        raise BadArgument(f"group_by={tuple(groups)!r}: some of {', '.join(GROUPS)}")
    rows: dict[tuple[str, ...], Average] = {}
    for event in events:
        caller = callers.get(id(event))
        stack = texts.text("; ".join(caller.stack[:lines])) if caller is not None else texts.NONE
        key = tuple(stack if group == "stack" else _key(event, group) for group in groups)
        row = rows.setdefault(key, Average(key))
        row.count += 1
        row.executions += event.executions
        row.failed += event.failed
        row.latency += (event.ended - event.received) / 1e3
        if event.ready is not None and event.started is not None:
            row.queue += (event.started - event.ready) / 1e3
        if caller is not None:
            row.cpu_time_total += (caller.end - caller.begin) / 1e3
        if caller is not None and event.ended <= caller.end:
            row._ways.append(((event.received - caller.begin) / 1e3, (caller.end - event.ended) / 1e3))
        if event.device_us is not None and event.what != "compile":
            row.total += event.device_us
            row._each.append(event.device_us / event.executions)
    whole = sum(row.total for row in rows.values())
    for row in rows.values():
        row.queue /= row.count
        row.latency /= row.count
        if row._ways:
            row.send, row.reply = (statistics.fmean(way) for way in zip(*row._ways, strict=True))
        row.share = row.total / whole if whole else 0.0
    return Averages(sorted(rows.values(), key=lambda row: -row.total), groups)


class ProfilerAction(Enum):
    """A profiler's action in a step."""

    NONE = 0
    WARMUP = 1  # records, and throws away
    RECORD = 2
    RECORD_AND_SAVE = 3  # the last step of a cycle


def schedule(*, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0) -> Callable[[int], ProfilerAction]:
    """As `torch.profiler.schedule`: after `skip_first` steps, cycles of `wait` steps without, `warmup` steps recorded in vain,
    `active` steps recorded. `repeat` cycles, 0: for ever."""
    for name, value in {"wait": wait, "warmup": warmup, "repeat": repeat, "skip_first": skip_first}.items():
        if value < 0:
            raise BadArgument(f"{name}={value}: a number of steps is not negative")
    if active < 1:
        raise BadArgument(f"active={active}: at least one step of a cycle is recorded")
    length = wait + warmup + active

    def action(step: int) -> ProfilerAction:
        if step < skip_first:
            return ProfilerAction.NONE
        cycle, at = divmod(step - skip_first, length)
        if repeat and cycle >= repeat:
            return ProfilerAction.NONE
        if at < wait:
            return ProfilerAction.NONE
        if at < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD_AND_SAVE if at == length - 1 else ProfilerAction.RECORD

    return action


def action_of(value: Any) -> ProfilerAction:
    """The action that a schedule said; torch's schedules say torch's actions."""
    name = getattr(value, "name", "")
    if name not in ProfilerAction.__members__:
        raise BadArgument(f"schedule has said {value!r}: it says a ProfilerAction of each step; kops.profiler.schedule() makes one")
    return ProfilerAction[name]


def always(_step: int) -> ProfilerAction:
    return ProfilerAction.RECORD


# The arguments of torch.profiler.profile: the ones with a meaning here, and the reasons why the others are ignored

class ProfilerActivity(Enum):
    """The activities that a profile records. torch's values are taken too."""

    CPU = 0  # calls of this process, and work on the host device
    CUDA = 2  # work on GPUs


BOTH = frozenset(ProfilerActivity)
OWN = ("activities", "schedule", "on_trace_ready", "record_shapes", "with_stack", "acc_events", "socket", "processes", "torch_profiler")
IGNORED = {
    "profile_memory": "kopsd allocates nothing for torch; give torch_profiler= a torch.profiler.profile with profile_memory=True",
    "with_flops": "the daemon's events have no operations; kops.report() has GFLOP/s",
    "with_modules": "the daemon sees no modules; give torch_profiler= a torch.profiler.profile with with_modules=True",
    "experimental_config": "it configures Kineto, which records nothing here; k.profile(..., counters=True) reads a GPU's counters",
    "execution_trace_observer": "it observes torch's operators; give it to the torch.profiler.profile of torch_profiler=",
    "custom_trace_id_callback": "traces have no identifiers here",
    "post_processing_timeout_s": "nothing is processed when a profile ends",
}
_said: set[str] = set()


def supported_activities() -> set[ProfilerActivity]:
    return set(BOTH)


def activities_of(wanted: Iterable[Any] | None, use_cuda: Any) -> frozenset[ProfilerActivity]:
    """As torch does: none named are all, and `use_cuda`, which is older, adds or removes CUDA."""
    names = []
    if isinstance(wanted, str) or not isinstance(wanted, (Iterable, type(None))):
        raise BadArgument(f"activities={wanted!r}: a list, such as [ProfilerActivity.CPU, ProfilerActivity.CUDA]")
    for one in wanted or ():
        name = getattr(one, "name", "")
        if name not in ProfilerActivity.__members__:
            raise BadArgument(f"activities has {one!r}: kopsd has ProfilerActivity.CPU and ProfilerActivity.CUDA")
        names.append(name)
    made = frozenset(ProfilerActivity[name] for name in names) or BOTH
    if flag("use_cuda", use_cuda, none=True) is None:
        return made
    cuda = frozenset({ProfilerActivity.CUDA})
    made = made | cuda if use_cuda else made - cuda
    if not made:
        raise BadArgument("use_cuda=False leaves nothing of activities=[ProfilerActivity.CUDA]: name ProfilerActivity.CPU")
    return made


def flag(name: str, value: Any, none: bool = False) -> Any:
    if not isinstance(value, bool) and not (none and value is None):
        raise BadArgument(f"{name}={value!r}: True or False")
    return value


def function(name: str, value: Any, what: str) -> Any:
    if value is not None and not callable(value):
        raise BadArgument(f"{name}={value!r}: a function, {what}, or None")
    return value


def ignore(rest: Mapping[str, Any]) -> None:
    """Says once a process of each argument why it is ignored; False and None ask for nothing."""
    unknown = [name for name in rest if name not in IGNORED]
    if unknown:
        known = ", ".join((*OWN, "use_cuda", *IGNORED))
        raise TypeError(f"profile() has no argument {', '.join(map(repr, unknown))}; it has {known}")
    for name, value in rest.items():
        if value is not None and value is not False and name not in _said:
            _said.add(name)
            warn(f"{name} is ignored: {IGNORED[name]}", UserWarning)


# The profile

STEP = "ProfilerStep#"  # torch's, by which TensorBoard's plug-in knows steps
MOST = 1_000_000  # events, and spans, of one recording


class profile:  # noqa: N801: torch's name
    """Records what this process asks of kopsd; a context manager.

    `schedule` chooses the steps (`schedule(...)` here; None: all), `step()` ends one. `on_trace_ready` is called with the profile
    whenever a cycle was recorded, and at the end for a cycle that was not whole. `socket` names the daemon, as for `connect`.
    `activities` are `ProfilerActivity.CPU` (this process's calls, and work on the host device) and `ProfilerActivity.CUDA` (work on
    GPUs); None: both. `with_stack` keeps of each call the lines that made it. Shapes are recorded always. `acc_events` keeps what earlier
    cycles recorded. torch's other arguments are ignored with a warning.

    `processes` is "own" (this process's calls), "user" (all of this user's) or "all" (administrators only). With `torch_profiler`, a
    `torch.profiler.profile` that runs around or inside this one, `export_chrome_trace` writes one trace of both.

    At most 1,000,000 requests and as many calls are kept of a cycle; `dropped` says how many were not. Work that is still under way
    when a cycle ends is not in it: synchronize before. One profile records at a time. Thread: `step` and the exports
    belong to one thread; calls of all threads are recorded.
    """

    def __init__(
        self, *, activities: Iterable[Any] | None = None, schedule: Callable[[int], Any] | None = None,
        on_trace_ready: Callable[[profile], Any] | None = None, record_shapes: bool = False, with_stack: bool = False,
        acc_events: bool = False, use_cuda: bool | None = None, socket: str | os.PathLike[str] | None = None,
        processes: str = "own", torch_profiler: Any = None, **ignored: Any,
    ) -> None:  # fmt: skip
        ignore(ignored)
        if processes not in ("own", "user", "all"):
            raise BadArgument(f"processes={processes!r}: \"own\", \"user\" or \"all\"")
        flag("record_shapes", record_shapes)
        self._activities = activities_of(activities, use_cuda)
        self._stacks, self._adds_up = flag("with_stack", with_stack), flag("acc_events", acc_events)
        self._schedule = function("schedule", schedule, "such as schedule(wait=1, warmup=1, active=2)") or always
        self._on_trace_ready = function("on_trace_ready", on_trace_ready, "such as tensorboard_trace_handler(folder)")
        self._metadata: dict[str, Any] = {}
        self._socket, self._processes, self._torch = socket, processes, torch_profiler
        self.step_num = 0
        self._action = ProfilerAction.NONE
        self._recorder: Recorder | None = None
        self._watch: Watch | None = None
        self._step_began = 0
        self._clear()

    def _clear(self) -> None:
        self._events: list[Event] = []
        self._spans: list[Span] = []
        self._devices: dict[str, Device] = {}  # by UUID
        self.dropped = 0
        self._offset = 0  # from CLOCK_MONOTONIC to the time of day, ns

    # Recording

    def __enter__(self) -> profile:
        self.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def start(self) -> None:
        self._begin_step()

    def stop(self) -> None:
        """The end of the last step. Hands over what was recorded since the last cycle's end."""
        recorded = self._action in (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
        self._end_step()
        self._stop_recording(keep=recorded)
        if recorded and self._on_trace_ready is not None:
            self._on_trace_ready(self)
        self._action = ProfilerAction.NONE

    def step(self) -> None:
        """Begins the next step."""
        before = self._action
        self._end_step()
        if before is ProfilerAction.RECORD_AND_SAVE:
            self._stop_recording(keep=True)
            if self._on_trace_ready is not None:
                self._on_trace_ready(self)
        self.step_num += 1
        self._begin_step()

    def _begin_step(self) -> None:
        before, self._action = self._action, action_of(self._schedule(self.step_num))
        recording = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
        if before is ProfilerAction.WARMUP and self._action is not ProfilerAction.WARMUP:
            self._stop_recording(keep=False)
        if self._action in recording and self._recorder is None and not self._adds_up:
            self._clear()
        if self._action is not ProfilerAction.NONE and self._recorder is None:
            self._start_recording()
        self._step_began = clock()

    def _end_step(self) -> None:
        if self._recorder is not None:
            _recorder.mark("step", f"{STEP}{self.step_num}", self._step_began, clock())

    def _start_recording(self) -> None:
        if _recorder._watch is not None:
            raise BadArgument("another profile of this process is recording: stop it first")
        recorder = Recorder(self._socket, self._processes == "all", MOST)
        recorder.start()
        if self._activities == {ProfilerActivity.CUDA} and not recorder.devices.keys() - recorder.hosts:
            warn("this daemon has no GPU, and activities has no ProfilerActivity.CPU: the profile will be empty", UserWarning)
        self._recorder, self._watch = recorder, Watch(MOST, self._stacks)
        _recorder.install(self._watch)

    def _stop_recording(self, keep: bool) -> None:
        recorder, watch = self._recorder, self._watch
        if recorder is None or watch is None:
            return
        _recorder.remove()
        self._recorder = self._watch = None
        recorder.stop()
        if not keep:
            return
        own = os.getpid()
        mine = (event for event in recorder.events if self._processes != "own" or event.pid == own)
        self._events += [event for event in mine if self._is_wanted(event, recorder.hosts)]
        self._spans += [span for span in watch.spans if span.kind != "call" or ProfilerActivity.CPU in self._activities]
        self._devices.update(recorder.described)
        self.dropped += recorder.dropped + watch.dropped
        self._offset = _to_time_of_day()

    def _is_wanted(self, event: Event, hosts: set[str]) -> bool:
        if not event.device:
            return True
        return (ProfilerActivity.CPU if event.device in hosts else ProfilerActivity.CUDA) in self._activities

    # Results

    def events(self) -> list[Event]:
        """The daemon's events, in the order in which they ended."""
        return list(self._events)

    def spans(self) -> list[Span]:
        """This process's calls, ranges and steps, in the order in which they ended."""
        return list(self._spans)

    def key_averages(
        self, group_by_input_shape: bool = False, group_by_stack_n: int = 0, group_by_overload_name: bool = False,
        *, group_by: Sequence[str] = (),
    ) -> Averages:  # fmt: skip
        """A row for each op, dtype, variant and device, with `group_by_input_shape` for each of their shapes too; or by what
        `group_by` names: "op", "dtype", "shapes", "variant", "device", "client", "stack". `group_by_stack_n` tells apart what different
        lines called, by so many of the innermost ones; a profile without `with_stack` has none. An op's overloads are its dtypes."""
        if not isinstance(group_by_stack_n, int) or group_by_stack_n < 0:
            raise BadArgument(f"group_by_stack_n={group_by_stack_n!r}: a number of lines, 0 or more")
        if (group_by_stack_n or "stack" in group_by) and not self._stacks:
            raise BadArgument("the profile has no stacks to group by: record it with profile(with_stack=True)")
        more = (*(("shapes",) if group_by_input_shape else ()), "variant", "device", *(("stack",) if group_by_stack_n else ()))
        groups = tuple(group_by) or ("op", "dtype", *more)
        return averages(self._events, groups, match(self._events, self._spans, os.getpid()), group_by_stack_n or 1)

    def chrome_trace(self) -> dict[str, Any]:
        """The trace as an object for `json.dump`."""
        theirs = self._torch_trace() if self._torch is not None else {}
        base = theirs.get("baseTimeNanoseconds", 0) if theirs else min(self._begins(), default=0) + self._offset
        names = {uuid: device.name for uuid, device in self._devices.items()}
        trace = Trace(names, lambda ns: (ns + self._offset - base) / 1e3, self._devices)
        theirs_too = any(str(event.get("name")).startswith(STEP) for event in theirs.get("traceEvents", ()))
        spans = [span for span in self._spans if not (theirs_too and span.kind == "step")]  # torch's steps are the program's, too
        trace.add_spans(spans, os.getpid(), self._events)
        trace.add_ways(self._events, self._spans, os.getpid())
        trace.add_events(self._events, self._spans, os.getpid())
        kops = {"events": len(self._events), "dropped": self.dropped}
        made: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ns", "baseTimeNanoseconds": base, **theirs}
        made["deviceProperties"] = theirs.get("deviceProperties") or trace.properties()
        made.update(self._metadata)
        made["otherData"] = {**theirs.get("otherData", {}), "kops": kops}
        made.pop("traceEvents", None)
        made["traceEvents"] = [*theirs.get("traceEvents", ()), *trace.done()]  # last: TensorBoard's plug-in appends at the file's last "]"
        return made

    def _begins(self) -> Iterable[int]:
        yield from (event.received for event in self._events)
        yield from (span.begin for span in self._spans)

    def _torch_trace(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "torch.json")
            self._torch.export_chrome_trace(path)
            with open(path, encoding="utf-8") as file:
                trace: dict[str, Any] = json.load(file)
                return trace

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace for ui.perfetto.dev and chrome://tracing; compressed where the name ends in `.gz`."""
        # Perfetto shows \u escapes as they are written. Half a surrogate pair has no other form.
        text = json.dumps(self.chrome_trace(), ensure_ascii=False).encode("utf-8", "backslashreplace")
        Path(path).write_bytes(gzip.compress(text) if os.fspath(path).endswith(".gz") else text)

    def export_stacks(self, path: str | os.PathLike[str], metric: str = "self_cpu_time_total") -> None:
        """Writes a line for each stack with its microseconds, the outermost frame first, as flame graphs are made of. `metric`:
        "self_cpu_time_total", the calls' time in this process, or "self_cuda_time_total", their work's on the device."""
        if metric not in ("self_cpu_time_total", "self_cuda_time_total", "self_device_time_total"):
            raise BadArgument(f"metric={metric!r}: self_cpu_time_total, self_cuda_time_total or self_device_time_total")
        if not self._stacks:
            raise BadArgument("the profile has no stacks to write: record it with profile(with_stack=True)")
        device = {id(span): 0.0 for span in self._spans}
        callers = match(self._events, self._spans, os.getpid())
        for event in self._events:
            if id(event) in callers and event.what != "compile":
                device[id(callers[id(event)])] += event.device_us or 0.0
        sums: dict[tuple[str, ...], float] = {}
        for span in self._spans:
            if span.stack:
                us = (span.end - span.begin) / 1e3 if metric == "self_cpu_time_total" else device[id(span)]
                sums[span.stack] = sums.get(span.stack, 0.0) + us
        plain = str.maketrans({" ": "_", ";": "_", "\t": "_", "\n": "_"})
        lines = (f"{';'.join(frame.translate(plain) for frame in reversed(stack))} {us:.0f}" for stack, us in sums.items() if us > 0.5)
        Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", errors="backslashreplace")

    def add_metadata(self, key: str, value: str) -> None:
        """A text of the trace's own, beside its events."""
        self._add(key, str(value))

    def add_metadata_json(self, key: str, value: str) -> None:
        """As `add_metadata`, of JSON."""
        try:
            self._add(key, json.loads(value))
        except ValueError as error:
            raise BadArgument(f"add_metadata_json({key!r}, {value!r}) is no JSON: {error}; add_metadata takes any text") from None

    def _add(self, key: str, value: Any) -> None:
        if key in ("traceEvents", "otherData", "displayTimeUnit", "baseTimeNanoseconds", "deviceProperties"):
            raise BadArgument(f"the trace has a {key} of its own: choose another key")
        self._metadata[key] = value


def _to_time_of_day() -> int:
    """Nanoseconds to add to CLOCK_MONOTONIC, by the closest of some readings."""
    best = None
    for _ in range(20):
        before, day, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if best is None or after - before < best[0]:
            best = after - before, day - (before + after) // 2
    assert best is not None
    return best[1]


def tensorboard_trace_handler(
    dir_name: str | os.PathLike[str], worker_name: str | None = None, use_gzip: bool = False
) -> Callable[[profile], None]:
    """For `on_trace_ready`: writes each trace into the folder, by the names that TensorBoard's plug-in looks for."""
    os.makedirs(dir_name, exist_ok=True)
    worker = worker_name or f"{sockets.gethostname()}_{os.getpid()}"

    def handler(done: profile) -> None:
        name = f"{worker}.{time.time_ns()}.pt.trace.json{'.gz' if use_gzip else ''}"
        done.export_chrome_trace(os.path.join(dir_name, name))

    return handler
