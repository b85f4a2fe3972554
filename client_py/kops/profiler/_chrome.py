"""Traces in the format of `chrome://tracing` and Perfetto. ../../../docs/profiling.md says what is in one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .. import Device
from ._recorder import Event, Span, match

DEVICE_PIDS = (1 << 31) - 1  # devices count downwards from here: no process has such a number
UNKNOWN_PIDS, UNKNOWN_PIDS_COUNT = 1 << 30, 1 << 29
FIRST_ID = 1 << 30  # calls and work count from here: a trace that is joined with this one counts from 1
OPEN_US = 1.0  # opening memory that took less is not shown


class _Lanes:
    """Rows of one kind. What overlaps goes to different rows: the first that is free."""

    def __init__(self) -> None:
        self._ends: list[int] = []

    def place(self, begin: int, end: int) -> int:
        end = max(end, begin + 1)  # otherwise one of two slices without a length would lie in the other
        for lane, free in enumerate(self._ends):
            if free <= begin:
                self._ends[lane] = end
                return lane
        self._ends.append(end)
        return len(self._ends) - 1


class _NestedLanes:
    """Rows of one thread. A slice may be in another one of its row; what begins in one and ends outside goes to another row."""

    def __init__(self) -> None:
        self._open: list[list[int]] = []  # for each row the ends of open slices, the inner ones last

    def place(self, begin: int, end: int) -> int:
        """For slices in the order of their begin, the longer ones first."""
        for lane, ends in enumerate(self._open):
            while ends and ends[-1] <= begin:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return lane
        self._open.append([end])
        return len(self._open) - 1


class _Rows:
    """Processes and threads of the trace, with their names."""

    def __init__(self) -> None:
        self._processes: dict[int, str] = {}
        self._threads: dict[tuple[int, Any], int] = {}
        self._names: dict[tuple[int, int], str] = {}
        self._count: dict[int, int] = {}

    def process(self, pid: int, name: str) -> None:
        self._processes.setdefault(pid, name)

    def thread(self, pid: int, key: Any, name: str) -> int:
        """The number of the row: small, from 1, and of no thread."""
        tid = self._threads.get((pid, key))
        if tid is None:
            tid = self._count.get(pid, 0) + 1
            while (pid, tid) in self._names:
                tid += 1
            self._threads[pid, key] = self._count[pid] = tid
            self._names[pid, tid] = name
        return tid

    def own(self, pid: int, tid: int, name: str) -> int:
        """The row of a thread of the process, by its own number."""
        self._names.setdefault((pid, tid), name)
        return tid

    def metadata(self) -> list[dict[str, Any]]:
        made = [_meta("process_name", pid, name=name) for pid, name in self._processes.items()]
        made += [_meta("process_sort_index", pid, sort_index=pid) for pid in self._processes]
        for (pid, tid), name in self._names.items():
            made += [_meta("thread_name", pid, tid, name=name), _meta("thread_sort_index", pid, tid, sort_index=tid)]
        return made


def _meta(what: str, pid: int, tid: int | None = None, **args: Any) -> dict[str, Any]:
    made = {"ph": "M", "name": what, "pid": pid, "args": args}
    return made if tid is None else {**made, "tid": tid}


def _properties(number: int, uuid: str, device: Device | None) -> dict[str, Any]:
    if device is None:
        return {"id": number, "name": uuid}
    made: dict[str, Any] = {"id": number, "name": device.name, "totalGlobalMem": device.memory_bytes}
    arch = re.fullmatch(r"sm_(\d+)(\d)[a-z]?", device.arch)  # sm_90: 9.0, sm_100: 10.0
    if arch is not None:
        made.update(computeMajor=int(arch[1]), computeMinor=int(arch[2]), numSms=device.compute_units)
    return made


def _pid(event: Event) -> int:
    """The process's number; one that no process has where the daemon does not see it, so that clients are told apart all the same."""
    return event.pid or UNKNOWN_PIDS + event.connection % UNKNOWN_PIDS_COUNT


def _us(begin: int | None, end: int | None) -> float | None:
    return None if begin is None or end is None else round((end - begin) / 1e3, 3)


def _parts_of(event: Event) -> list[tuple[str, int, int]]:
    """The parts of a call from when the device was given it."""
    if event.started is None:
        return []
    if event.began is None or event.finished is None or event.began > event.finished:
        return [("device", event.started, event.ended)]
    return [("wait", event.started, event.began), ("device", event.began, event.finished), ("end", event.finished, event.ended)]


class Trace:
    """Gathers the parts of a trace, spans first: their rows have threads' numbers. `to_us` makes the trace's time, in
    microseconds, of a time of CLOCK_MONOTONIC. With `described`, the devices themselves, the trace is as one of torch's: work has the
    category and the arguments that torch gives to kernels, which TensorBoard's plug-in looks for."""

    def __init__(self, devices: Mapping[str, str], to_us: Callable[[int], float], described: Mapping[str, Device] | None = None) -> None:
        self._devices, self._to_us, self._as_torch, self._described = devices, to_us, described is not None, described or {}
        self._external: dict[int, int] = {}  # numbers of spans, by the span's id()
        self._correlated: dict[int, int] = {}  # and of the work of events
        self._order = list(devices)
        self._rows = _Rows()
        self._lanes: dict[Any, _Lanes] = {}
        self._span_rows: dict[int, int] = {}  # by the span's id()
        self._events: list[dict[str, Any]] = []
        self._flows = 0

    def _slice(
        self, cat: str, name: str, pid: int, tid: int, begin: int, end: int, args: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        at = self._to_us(begin)
        made = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": round(at, 3), "dur": round(max(end - begin, 0) / 1e3, 3)}
        if args:
            made["args"] = {key: value for key, value in args.items() if value is not None}
        self._events.append({**made, **more})

    def _flow(self, phase: str, number: int, pid: int, tid: int, at: int) -> None:
        end = {"bp": "e"} if phase == "f" else {}
        ts = round(self._to_us(at), 3)
        self._events.append({"ph": phase, "cat": "call", "name": "work", "id": number, "pid": pid, "tid": tid, "ts": ts, **end})

    def _lane(self, key: Any, begin: int, end: int) -> int:
        return self._lanes.setdefault(key, _Lanes()).place(begin, end)

    # The daemon's rows

    def add_events(self, events: Sequence[Event], spans: Sequence[Span] = (), own_pid: int = 0) -> None:
        """The daemon's rows; arrows come from this process's spans, where these are theirs."""
        callers = match(events, spans, own_pid)
        first: dict[int, int] = {}
        for event in events:
            first[_pid(event)] = min(first.get(_pid(event), event.connection), event.connection)

        def place(event: Event) -> tuple[Any, ...]:
            row = (1, 0, 0) if event.what == "compile" else (0, event.connection, event.stream)
            return first[_pid(event)], _pid(event), row, event.received, event.ended

        ordered = sorted(events, key=place)
        several = self._connections(ordered)
        lanes = self._work_lanes(ordered)
        for event in ordered:
            tid = self._add_call(event, several)
            if id(event) in lanes:
                self._add_work(event, lanes[id(event)], tid, callers.get(id(event)))

    @staticmethod
    def _connections(events: Iterable[Event]) -> dict[int, set[int]]:
        made: dict[int, set[int]] = {}
        for event in events:
            made.setdefault(_pid(event), set()).add(event.connection)
        return made

    def _work_lanes(self, events: Iterable[Event]) -> dict[int, int]:
        """The row of each event with work on a device, by id()."""
        work = [(on, event) for event in events if event.what != "compile" and event.device and (on := event.on_device) is not None]
        work.sort(key=lambda one: (one[0][0], one[1].ended))
        return {id(event): self._lane(("device", event.device), *on) for on, event in work}

    def _add_call(self, event: Event, several: Mapping[int, set[int]]) -> int:
        pid = _pid(event)
        who = event.client or event.comm or f"client {event.connection}"
        self._rows.process(pid, f"{who} (pid {event.pid or 'unknown'})")
        row: tuple[Any, ...] = ("compile",) if event.what == "compile" else (event.connection, event.stream)
        name = "compiler" if event.what == "compile" else f"stream {event.stream}"
        if event.what != "compile" and len(several[pid]) > 1:
            name = f"connection {event.connection}, {name}"
        lane = self._lane((pid, row), event.received, event.ended)
        tid = self._rows.thread(pid, (row, lane), name if lane == 0 else f"{name} ({lane + 1})")
        args: dict[str, Any] = {name: getattr(event, name) or None for name in ("device", "variant", "dtype")}
        args["shapes"] = ", ".join("x".join(map(str, shape)) or "scalar" for shape in event.shapes) or None
        args |= {"executions": event.executions, "failed": event.failed or None}
        if event.what != "compile":
            args["open_us"] = _us(event.received, event.ready)
            args["queue_us"] = _us(event.ready, event.started)
            for name, begin, end in _parts_of(event):
                args[f"{name}_us"] = _us(begin, end)
            args["busy_us"] = event.busy_us
        cat = "compile" if event.what == "compile" else "call"
        self._slice(cat, event.label, pid, tid, event.received, event.ended, args, **({"cname": "terrible"} if event.failed else {}))
        if cat == "call":
            self._add_parts(event, pid, tid)
        return tid

    def _add_parts(self, event: Event, pid: int, tid: int) -> None:
        if event.ready is not None and event.ready - event.received > OPEN_US * 1e3:
            self._part("open", pid, tid, event.received, event.ready)
        self._part("queue", pid, tid, event.ready, event.started)
        for name, begin, end in _parts_of(event):
            self._part(name, pid, tid, begin, end)

    def _part(self, name: str, pid: int, tid: int, begin: int | None, end: int | None) -> None:
        """One without a length is left out: Perfetto has the next one inside it."""
        if begin is not None and end is not None and begin < end:
            self._slice("part", name, pid, tid, begin, end)

    def _add_work(self, event: Event, lane: int, call_tid: int, caller: Span | None) -> None:
        begin, end = event.on_device or (event.received, event.ended)
        if event.device not in self._order:
            self._order.append(event.device)
        pid = DEVICE_PIDS - self._order.index(event.device)
        name = self._devices.get(event.device)
        self._rows.process(pid, f"{name} ({event.device})" if name else event.device)
        tid = self._rows.own(pid, lane + 1, "kernels" if lane == 0 else f"kernels ({lane + 1})")
        args: dict[str, Any] = {"client": _pid(event), "stream": event.stream}
        if self._as_torch:
            args["External id"] = self._external[id(caller)] if caller is not None else 0
            args["correlation"] = self._correlation(event)
            args["device"] = self._order.index(event.device)
            if caller is not None and caller.launch is not None:
                device = self._described.get(event.device)
                args.update(caller.launch.arguments(event, device.compute_units if device is not None else 0))
        self._slice("kernel" if self._as_torch else "device", event.label, pid, tid, begin, end, args)
        self._flows += 1
        # At its end the call's slice is over.
        leaves = max(event.received, min(event.started or 0, event.ended - 1))
        if caller is not None:
            self._flow("s", self._flows, event.pid, self._span_rows[id(caller)], caller.begin)
            self._flow("t", self._flows, event.pid, call_tid, leaves)
        else:
            self._flow("s", self._flows, _pid(event), call_tid, leaves)
        self._flow("f", self._flows, pid, tid, begin)

    def _correlation(self, event: Event) -> int:
        return self._correlated.setdefault(id(event), FIRST_ID + len(self._correlated))

    def add_rows(self, pid: int, process: str, row: str, cat: str, slices: Iterable[tuple[str, int, int, Mapping[str, Any]]]) -> None:
        """Slices of which the daemon knows nothing, each with its name, its begin, its end and its arguments, in the order of their begins.
        Those that overlap are in several rows."""
        self._rows.process(pid, process)
        for name, begin, end, args in slices:
            lane = self._lane((pid, row), begin, end)
            tid = self._rows.thread(pid, (row, lane), row if lane == 0 else f"{row} ({lane + 1})")
            self._slice(cat, name, pid, tid, begin, end, args, **({"cname": "terrible"} if args.get("failed") else {}))

    # Rows of the calling process

    def add_spans(self, spans: Sequence[Span], pid: int, events: Iterable[Event] = ()) -> None:
        """Each thread's row; a call that asked for one of `events` has its operands. Ranges that overlap, as those of two tasks
        or of a step and what goes on after it, have more rows."""
        events = list(events)
        callers = match(events, spans, pid)
        asked = {id(callers[id(event)]): event for event in events if id(event) in callers}
        lanes: dict[int, _NestedLanes] = {}
        ordered = sorted(spans, key=lambda span: (span.begin, -span.end))
        placed = [(span, lanes.setdefault(span.thread, _NestedLanes()).place(span.begin, span.end)) for span in ordered]
        for span, lane in sorted(placed, key=lambda one: one[1]):  # the threads' own numbers first
            self._rows.process(pid, f"kops (pid {pid})")
            name = f"thread {span.thread}"
            if lane == 0:
                tid = self._rows.own(pid, span.thread, name)
            else:
                tid = self._rows.thread(pid, ("span", span.thread, lane), f"{name} ({lane + 1})")
            self._span_rows[id(span)] = tid
            number = self._external[id(span)] = FIRST_ID + len(self._external)
            args: dict[str, Any] = {"External id": number, "Call stack": ";".join(span.stack) or None, "args": span.args}
            event = asked.get(id(span))
            if event is not None:
                args["Input Dims"] = [list(shape) for shape in event.shapes]
                args["Input type"] = [event.dtype] * len(event.shapes)
            self._slice("cpu_op" if span.kind == "call" else "user_annotation", span.name, pid, tid, span.begin, span.end, args)

    def add_ways(self, events: Sequence[Event], spans: Sequence[Span], pid: int) -> None:
        """In each call the way to the daemon, which is to its work what a launch is to a kernel; and where it waited, the way back."""
        by_event = match(events, spans, pid)
        for event in events:
            span = by_event.get(id(event))
            if span is None:
                continue
            # Written even without a length: work is found by it.
            args = {"External id": self._external[id(span)], "correlation": self._correlation(event)}
            until = min(event.received, span.end)
            # TensorBoard's plug-in (torch-tb-profiler 0.4.3) knows launches by "runtime", not by torch's newer "cuda_runtime".
            self._slice("runtime", "send", pid, self._span_rows[id(span)], span.begin, max(until, span.begin), args)
            if event.ended <= span.end:
                self._part("reply", pid, self._span_rows[id(span)], event.ended, span.end)

    def properties(self) -> list[dict[str, Any]]:
        """Each device by torch's names, at the place that is its number among kernels' arguments."""
        return [_properties(number, uuid, self._described.get(uuid)) for number, uuid in enumerate(self._order)]

    def done(self) -> list[dict[str, Any]]:
        return self._rows.metadata() + self._events
