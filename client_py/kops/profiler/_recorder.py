"""What is recorded: the daemon's events, as they come, over a connection of its own; and the activity of this process: its calls of kops,
the sizes of its launches, and the ranges that it names.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ContextDecorator
from dataclasses import dataclass
from functools import wraps
from numbers import Integral
from types import FrameType
from typing import Any

from .. import BadArgument, Batch, Client, Device, Entry, Kernel, KopsError, Program, UnknownMethod, Unsupported
from .._companions import OURS, BaseKernel, Bound, Call, Calls, Geometry, OpMethods, PlainLink, drive, native, warn

READ_EVERY = 0.05  # seconds
READ_LATE = 0.01, 40  # seconds between looks at events that are pending at the end, and how many
ROOM = 65536  # events that the daemon keeps between two reads


@dataclass(frozen=True)
class Event:
    """One request of a client: a run of an op, a kernel, a sequence or a program, or a compilation.

    `what` is the request's method, `ops` the number of ops of one execution, of which `op`, `shapes` and the like say the
    first. Times are ns of CLOCK_MONOTONIC by the daemon, None: it did not come to that. `received`: decoded; `ready`: its memory
    is open; `started`: given to the device; `ended`. `busy_us` is the device's own time for all `executions` together, None where it was
    not measured. `began` and `finished`: the first timed execution began on the device, the last one ended there. `call` is the
    request's number on its `connection`.
    """

    what: str
    op: str
    ops: int
    device: str
    variant: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    pid: int
    uid: int
    client: str
    comm: str
    connection: int
    call: int
    stream: int
    received: int
    ready: int | None
    started: int | None
    ended: int
    busy_us: float | None
    executions: int
    failed: bool
    began: int | None = None
    finished: int | None = None

    @property
    def on_device(self) -> tuple[int, int] | None:
        """From when to when the device had the work, to the trace's knowledge; None: it never started."""
        if self.began is not None and self.finished is not None and self.began <= self.finished:
            return self.began, self.finished
        if self.started is None:
            return None
        return max(self.started, self.ended - round(self.busy_us * 1e3)) if self.busy_us else self.started, self.ended

    @property
    def label(self) -> str:
        """"add f32 1024x1024", "add, … (20 ops)"."""
        if self.what == "compile":
            return f"compile {self.op}".rstrip()
        if self.ops > 1:
            return f"{self.op}, … ({self.ops} ops)"
        if not self.op:
            return self.what
        shape = "x".join(map(str, self.shapes[-1])) or "scalar" if self.shapes else ""
        return " ".join(part for part in (self.op, self.dtype, shape) if part)

    @property
    def device_us(self) -> float | None:
        """`busy_us`, or where it was not measured the time from `started` to `ended`; None: it never started."""
        if self.busy_us is not None:
            return self.busy_us
        return None if self.started is None else (self.ended - self.started) / 1e3


class Decoder:
    """Makes events of replies. What was told once by number is remembered."""

    def __init__(self) -> None:
        self.kinds: dict[int, Mapping[str, Any]] = {}
        self.clients: dict[int, Mapping[str, Any]] = {}

    def events(self, reply: Mapping[str, Any]) -> list[Event]:
        self.kinds.update((kind["kind"], kind) for kind in reply["kinds"])
        self.clients.update((client["client"], client) for client in reply["clients"])
        origin = reply["origin_ns"]
        return [self._event(origin, row) for row in reply["events"]]

    def _event(self, origin: int, row: list[int]) -> Event:
        numbers = [*row, 0, 0][:13]  # an older daemon does not tell the last two
        number, connection, call, stream, received, ready, started, ended, busy, executions, failed, began, finished = numbers
        kind, client = self.kinds[number], self.clients.get(connection, {})

        def time(ns: int) -> int | None:
            return origin + ns if ns else None

        return Event(
            what=kind["what"], op=kind["op"], ops=kind["ops"], device=kind["device"], variant=kind["variant"], dtype=kind["dtype"],
            shapes=tuple(tuple(shape) for shape in kind["shapes"]),
            pid=client.get("pid", 0), uid=client.get("uid", 0), client=client.get("name", ""), comm=client.get("comm", ""),
            connection=connection, call=call, stream=stream,
            received=origin + received, ready=time(ready), started=time(started), ended=origin + ended,
            busy_us=busy / 1e3 if busy else None, executions=executions, failed=bool(failed),
            began=time(began), finished=time(finished),
        )  # fmt: skip


class Recorder:
    """A trace from `start` to `stop`. A thread reads it, so that the daemon's room suffices."""

    def __init__(self, socket: Any, everybody: bool, most: int) -> None:
        self._client = Client.unconnected(socket, blocking=True)
        self._everybody, self._most = everybody, most
        self._decoder = Decoder()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._lost = 0
        self._broken = False
        self._pending = 0
        self.events: list[Event] = []
        self.dropped = 0  # events that the daemon, or this recorder, had no room for
        self.devices: dict[str, str] = {}  # names by UUID
        self.described: dict[str, Device] = {}  # by UUID, too
        self.hosts: set[str] = set()  # UUIDs of devices that are no GPUs

    def start(self) -> None:
        self._ask(begin=True, everybody=self._everybody, events=ROOM)
        self.described = {device.uuid: device for device in self._client.info.devices}
        self.devices = {uuid: device.name for uuid, device in self.described.items()}
        self.hosts = {uuid for uuid, device in self.described.items() if device.backend == "host"}
        self._thread = threading.Thread(target=self._read_on, name="kops.profiler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Requests that ended before this call are in `events`."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._read(end=True)
            self._read_late()
        self._client.close()

    def _read_late(self) -> None:
        """The driver's record of the last kernels may still be to come."""
        pause, looks = READ_LATE
        for _ in range(looks):
            if not self._pending:
                return
            time.sleep(pause)
            self._read()

    def _ask(self, **params: Any) -> Mapping[str, Any]:
        def plan(_link: Any) -> Any:
            return (yield Call("trace", params))

        try:
            answer: Mapping[str, Any] = drive(self._client, plan, 60.0)
        except UnknownMethod:
            raise Unsupported("this daemon is older than the method `trace`: install a newer one") from None
        return answer

    def _read(self, **params: Any) -> bool:
        """Reads once. False: there is nothing to read any more."""
        if self._broken:
            return False
        try:
            reply = self._ask(**params)
        except KopsError as error:
            self._broken = True
            self._pending = 0
            self._end("kopsd was replaced" if isinstance(error, BadArgument) else str(error))
            return False
        self._keep(reply)
        self.dropped = reply["dropped"] + self._lost
        self._pending = reply.get("pending", 0)
        return True

    def _keep(self, reply: Mapping[str, Any]) -> None:
        room = self._most - len(self.events)
        events = self._decoder.events(reply)
        self.events += events[:room]
        self._lost += max(0, len(events) - room)

    def _end(self, why: str) -> None:
        """Warns that no more events will come."""
        warn(f"the profile has nothing of what kopsd does from now on: {why}", RuntimeWarning)

    def _read_on(self) -> None:
        while not self._ended.wait(READ_EVERY):
            if not self._read():
                return


# Activity of this process


@dataclass(frozen=True)
class Launched:
    """The parts of one launch's sizes. `sizes`: `grid`, `block` and `shared` as the launch gave them, or as the kernel declares
    them, numbers and expressions. `tensors`: the parameters in the order of an event's shapes. `values`: the integers of expressions by
    parameter, None for a null pointer. `entry`: the compiled kernel, where this process knows it."""

    kernel: str
    sizes: Mapping[str, Any]
    tensors: tuple[str, ...] = ()
    values: Mapping[str, int | None] | None = None
    entry: Entry | None = None

    def arguments(self, event: Event, multiprocessors: int) -> dict[str, Any]:
        """By torch's names, those that are known. `multiprocessors`: of the event's device, 0 where they are not known."""
        if event.op != self.kernel or event.ops != 1 or event.what == "compile":
            return {}
        names = self._names(event, multiprocessors)
        made: dict[str, Any] = {name: _numbers(self.sizes.get(name), names, name) for name in ("grid", "block")}
        if self.entry is not None:
            made["registers per thread"] = self.entry.registers or None
            dynamic = _numbers(self.sizes.get("shared", 0), names, "shared")
            made["shared memory"] = None if dynamic is None else self.entry.shared_bytes + dynamic[0]
        return {name: value for name, value in made.items() if value is not None}

    def _names(self, event: Event, multiprocessors: int) -> dict[str, Any]:
        """Names for expressions; a text stands for a value that they cannot use."""
        shapes: tuple[Any, ...] = event.shapes if len(event.shapes) == len(self.tensors) else ("",) * len(self.tensors)
        return {"multiprocessors": multiprocessors or "", **dict(zip(self.tensors, shapes)), **(self.values or {})}


def _numbers(value: Any, names: Mapping[str, Any], what: str) -> list[int] | None:
    """One to three sizes as three numbers; None where one of them is not known."""
    if value is None:
        return None
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    if any(isinstance(item, str) for item in items):
        from ..interpret._expressions import evaluate  # wants NumPy, which a profile does without

        try:
            items = [evaluate(item, names, what) for item in items]
        except KopsError:
            return None
    return [*items, 1, 1][:3]


def launched(kernel: BaseKernel, own: Mapping[str, Any], arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Launched:
    """The launch of a call of the kernel; `own`: the sizes that this launch had of its own. Keeps none of the arrays."""
    given = {name: size for name, size in {**kernel._geometry.declared, **own}.items() if name in ("grid", "block", "shared")}
    compiled = kernel.code.compiled
    entry = next((one for one in compiled.entries if one.name == kernel.name), None) if compiled is not None else None
    if not any(isinstance(size, str) for value in given.values() for size in (value if isinstance(value, list) else [value])):
        return Launched(kernel.name, given, entry=entry)
    passed = {**named, **dict(zip(kernel._places, arguments))}
    tensors = [param for param in kernel.params if param.is_tensor]
    values: dict[str, int | None] = {
        param.name: int(value)
        for param in kernel.params
        if not param.is_tensor and param.dtype[0] in "iub" and isinstance(value := passed.get(param.name), Integral)
    }
    values.update((param.name, None) for param in tensors if passed.get(param.name) is None)
    order = (*(p.name for p in tensors if p.kind == "in"), *(p.name for p in tensors if p.kind != "in"))
    return Launched(kernel.name, given, order, values, entry)


STACK_MOST = 64  # frames
clock = time.monotonic_ns  # CLOCK_MONOTONIC, the daemon's clock too


@dataclass
class Span:
    """A stretch of a thread's time, ns of CLOCK_MONOTONIC. `kind` is "call" (of kops; `call`: the number of its request on its
    `connection`, None where it made none), "range" (`record_function`) or "step"."""

    kind: str
    name: str
    thread: int
    begin: int
    end: int
    call: int | None = None
    connection: int = 0
    args: str | None = None  # a range's
    stack: tuple[str, ...] = ()  # where stacks are recorded: the lines that made a call, the innermost first
    launch: Launched | None = None  # the sizes of a kernel's call


def _stack() -> tuple[str, ...]:
    """Where this thread is, as torch writes it, without this package's own frames."""
    made: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(made) < STACK_MOST:
        if not frame.f_code.co_filename.startswith(OURS):
            made.append(f"{frame.f_code.co_filename}({frame.f_lineno}): {frame.f_code.co_name}")
        frame = frame.f_back
    return tuple(made)


class Watch:
    """Collects spans while it is installed. One at a time."""

    def __init__(self, most: int, stacks: bool = False) -> None:
        self.stacks = stacks
        self.spans: list[Span] = []
        self.dropped = 0
        self._most = most

    def add(self, span: Span) -> None:
        if len(self.spans) < self._most:
            self.spans.append(span)
        else:
            self.dropped += 1


_watch: Watch | None = None
_thread = threading.local()


def _last_call() -> int:
    """The number of the last request that this thread made, in whatever way."""
    return (native.last_call() if native is not None else 0) or getattr(_thread, "last", 0)


def _note_call(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def enqueue(self: Any, call: Any) -> Any:
        answer = original(self, call)
        _thread.last = call.msgid
        return answer

    return enqueue


def _number(span: Span, before: int, caller: Any) -> None:
    """Sets the number of the span's request, which was made after the request `before`. A call that a batch gathers has made none;
    where the batch was full, the one made is of the calls before it."""
    client = caller if isinstance(caller, Calls) else caller._client
    info = getattr(client._connection, "info", None)
    span.connection = info.connection if info is not None else 0
    last = _last_call()
    if threading.get_ident() not in client._batches:
        span.call = last if last != before else None
        return
    waiting: list[Span] = _thread.__dict__.setdefault("waiting", [])
    if last != before:
        for earlier in waiting:
            earlier.call = last
        waiting.clear()
    waiting.append(span)


def _timed(
    original: Callable[..., Any], name_of: Callable[..., str], launch_of: Callable[..., Launched] | None = None
) -> Callable[..., Any]:
    """The method, noted as a call of this thread."""

    @wraps(original)
    def call(self: Any, *args: Any, **keywords: Any) -> Any:
        watch = _watch
        if watch is None or getattr(_thread, "inside", False):
            return original(self, *args, **keywords)
        before, _thread.inside, _thread.sizes = _last_call(), True, None
        stack = _stack() if watch.stacks else ()
        span = Span("call", name_of(self, *args), threading.get_native_id(), clock(), 0, stack=stack)
        try:
            return original(self, *args, **keywords)
        finally:
            span.end = clock()
            _thread.inside = False
            _number(span, before, self)
            if launch_of is not None:
                span.launch = launch_of(self, args, keywords)
            watch.add(span)

    return call


def _note_sizes(original: Callable[..., Any]) -> Callable[..., Any]:
    """The sizes of a launch, noted for the call that it is in: a kernel's functions are called once."""

    @wraps(original)
    def of_call(self: Any, *args: Any) -> Any:
        sizes = original(self, *args)
        _thread.sizes = self, sizes
        return sizes

    return of_call


def _launch_of(kernel: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Launched:
    geometry, sizes = getattr(_thread, "sizes", None) or (None, {})
    return launched(kernel, sizes if geometry is kernel._geometry else {}, args, keywords)


def _flushed(original: Callable[..., Any]) -> Callable[..., Any]:
    """The end of a batch, or its flush: one request for all of its calls."""

    @wraps(original)
    def flush(self: Any, *args: Any, **keywords: Any) -> Any:
        before = _last_call()
        try:
            return original(self, *args, **keywords)
        finally:
            last, waiting = _last_call(), _thread.__dict__.pop("waiting", [])
            for span in waiting if last != before else ():
                span.call = last

    return flush


def _not_now(original: Callable[..., Any]) -> Callable[..., Any]:
    """A short way, for calls that are to be noted: none."""

    @wraps(original)
    def call(*_: Any) -> Any:
        return NotImplemented

    return call


def _by_the_kernel(original: Callable[..., Any]) -> Callable[..., Any]:
    """`kernel[grid, block](…)` as the kernel's own call, which is noted."""

    @wraps(original)
    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return self._kernel(*arguments, **{**self._sizes, **keywords})

    return call


_WRAPPED: tuple[tuple[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]], ...] = (
    (Calls, "_op", lambda original: _timed(original, lambda self, op, *_: str(op))),
    (Calls, "_at_once", _not_now),
    (Bound, "__call__", _by_the_kernel),
    (Kernel, "__call__", lambda original: _timed(original, lambda self, *_: self.name, _launch_of)),
    (Geometry, "of_call", _note_sizes),
    (Program, "run", lambda original: _timed(original, lambda self, *_: "program")),
    (Batch, "flush", _flushed),
    (Batch, "__exit__", _flushed),
    (PlainLink, "put", _note_call),
)
_originals: list[tuple[Any, str, Any]] = []


def install(watch: Watch) -> None:
    """From now on calls are noted. They cost some microseconds more each; while none is installed they cost nothing."""
    global _watch
    _watch = watch
    if not _originals:
        for owner, name, wrap in _WRAPPED:
            _originals.append((owner, name, owner.__dict__[name]))
            setattr(owner, name, wrap(owner.__dict__[name]))
        # The compiled part launches ops here without Python in between: calls are noted in Python.
        for name, method in list(vars(OpMethods).items()):
            if callable(method) and hasattr(method, "__wrapped__"):
                _originals.append((OpMethods, name, method))
                setattr(OpMethods, name, method.__wrapped__)


def remove() -> None:
    global _watch
    _watch = None
    while _originals:
        owner, name, original = _originals.pop()
        setattr(owner, name, original)


def mark(kind: str, name: str, begin: int, end: int, args: str | None = None) -> None:
    if _watch is not None:
        _watch.add(Span(kind, name, threading.get_native_id(), begin, end, args=args))


class record_function(ContextDecorator):  # noqa: N801: torch's name
    """Names a range of this thread's time in the trace; a context manager and a decorator. Where torch is loaded, its profiler
    gets the range too."""

    def __init__(self, name: str, args: str | None = None) -> None:
        if not isinstance(name, str) or not isinstance(args, (str, type(None))):
            raise BadArgument(f"record_function({name!r}, {args!r}): a name, and a text or None")
        self.name, self.args = name, args
        self._open: list[tuple[int, Any]] = []

    def _recreate_cm(self) -> record_function:
        return record_function(self.name, self.args)

    def __enter__(self) -> record_function:
        torch = sys.modules.get("torch")
        shown = self.name.encode(errors="backslashreplace").decode()  # torch takes what UTF-8 has
        theirs = torch.profiler.record_function(shown, self.args) if torch is not None and hasattr(torch, "profiler") else None
        if theirs is not None:
            theirs.__enter__()
        self._open.append((clock(), theirs))
        return self

    def __exit__(self, *why: Any) -> None:
        begin, theirs = self._open.pop()
        mark("range", self.name, begin, clock(), self.args)
        if theirs is not None:
            theirs.__exit__(*why)


def match(events: Iterable[Event], spans: Iterable[Span], pid: int) -> dict[int, Span]:
    """The call of this process that each event comes from, by the event's id(); of a batch the last one."""
    calls = {(span.connection, span.call): span for span in spans if span.call is not None and span.connection}
    made: dict[int, Span] = {}
    for event in events:
        span = calls.get((event.connection, event.call)) if event.pid == pid else None
        if span is not None and span.begin <= event.received:
            made[id(event)] = span
    return made
