"""The profiler: records steps by a schedule, and hands out what it recorded."""

from __future__ import annotations

import gzip
import json
import os
import socket as sockets
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from .._base.errors import BadArgument
from . import _spans
from ._averages import Averages, averages
from ._chrome import Trace
from ._recorder import Event, Recorder
from ._schedule import ProfilerAction, always
from ._spans import Span, Watch, clock, match

MOST = 1_000_000  # events, and spans, of one recording


class profile:  # noqa: N801: torch's name
    """Records what this process asks of kopsd; a context manager.

    `schedule` chooses the steps (`schedule(...)` here; None: all), `step()` ends one. `on_trace_ready` is called with the profile
    whenever a cycle was recorded, and at the end for a cycle that was not whole. `socket` names the daemon, as for `connect`.
    `processes` is "own" (this process's calls), "user" (all of this user's) or "all" (administrators only). With `torch_profiler`, a
    `torch.profiler.profile` that runs around or inside this one, `export_chrome_trace` writes one trace of both.

    At most 1,000,000 requests and as many calls are kept of a cycle; `dropped` says how many were not. Work that is still under way
    when a cycle ends is not in it: synchronize before. One profile records at a time. Thread: `step` and the exports
    belong to one thread; calls of all threads are recorded.
    """

    def __init__(
        self, *, schedule: Callable[[int], ProfilerAction] | None = None, on_trace_ready: Callable[[profile], Any] | None = None,
        socket: str | os.PathLike[str] | None = None, processes: str = "own", torch_profiler: Any = None,
    ) -> None:  # fmt: skip
        if processes not in ("own", "user", "all"):
            raise BadArgument(f"processes={processes!r}: \"own\", \"user\" or \"all\"")
        self._schedule = schedule or always
        self._on_trace_ready = on_trace_ready
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
        self._devices: dict[str, str] = {}
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
        """The next step begins."""
        before = self._action
        self._end_step()
        if before is ProfilerAction.RECORD_AND_SAVE:
            self._stop_recording(keep=True)
            if self._on_trace_ready is not None:
                self._on_trace_ready(self)
        self.step_num += 1
        self._begin_step()

    def _begin_step(self) -> None:
        before, self._action = self._action, self._schedule(self.step_num)
        recording = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
        if before is ProfilerAction.WARMUP and self._action is not ProfilerAction.WARMUP:
            self._stop_recording(keep=False)
        if self._action in recording and self._recorder is None:
            self._clear()
        if self._action is not ProfilerAction.NONE and self._recorder is None:
            self._start_recording()
        self._step_began = clock()

    def _end_step(self) -> None:
        if self._recorder is not None:
            _spans.mark("step", f"step {self.step_num}", self._step_began, clock())

    def _start_recording(self) -> None:
        if _spans._watch is not None:
            raise BadArgument("another profile of this process is recording: stop it first")
        recorder = Recorder(self._socket, self._processes == "all", MOST)
        recorder.start()
        self._recorder, self._watch = recorder, Watch(MOST)
        _spans.install(self._watch)

    def _stop_recording(self, keep: bool) -> None:
        recorder, watch = self._recorder, self._watch
        if recorder is None or watch is None:
            return
        _spans.remove()
        self._recorder = self._watch = None
        recorder.stop()
        if not keep:
            return
        own = os.getpid()
        self._events = [event for event in recorder.events if self._processes != "own" or event.pid == own]
        self._spans = watch.spans
        self._devices = recorder.devices
        self.dropped = recorder.dropped + watch.dropped
        self._offset = _to_time_of_day()

    # Results

    def events(self) -> list[Event]:
        """The daemon's events, in the order in which they ended."""
        return list(self._events)

    def spans(self) -> list[Span]:
        """This process's calls, ranges and steps, in the order in which they ended."""
        return list(self._spans)

    def key_averages(self, group_by_input_shape: bool = False, group_by: Sequence[str] = ()) -> Averages:
        """A row for each op, dtype, variant and device, with `group_by_input_shape` for each of their shapes too; or by what
        `group_by` names: "op", "dtype", "shapes", "variant", "device", "client"."""
        groups = tuple(group_by) or ("op", "dtype", *(("shapes",) if group_by_input_shape else ()), "variant", "device")
        return averages(self._events, groups, match(self._events, self._spans, os.getpid()))

    def chrome_trace(self) -> dict[str, Any]:
        """The trace as an object for `json.dump`."""
        theirs = self._torch_trace() if self._torch is not None else {}
        base = theirs.get("baseTimeNanoseconds", 0) if theirs else min(self._begins(), default=0) + self._offset
        trace = Trace(self._devices, lambda ns: (ns + self._offset - base) / 1e3)
        trace.add_spans(self._spans, os.getpid())
        trace.add_ways(self._events, self._spans, os.getpid())
        trace.add_events(self._events, self._spans, os.getpid())
        kops = {"events": len(self._events), "dropped": self.dropped}
        made: dict[str, Any] = {"displayTimeUnit": "ns", "baseTimeNanoseconds": base, **theirs}
        made["traceEvents"] = [*theirs.get("traceEvents", ()), *trace.done()]
        made["otherData"] = {**theirs.get("otherData", {}), "kops": kops}
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


def _to_time_of_day() -> int:
    """What is to be added to CLOCK_MONOTONIC, by the closest of some readings."""
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
