"""Records what the daemon does, over a connection of its own: its events, as they come."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import BadArgument, Client, Device, KopsError, UnknownMethod, Unsupported
from .._companions import Call, drive, warn

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
