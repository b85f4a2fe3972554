"""A worker: an actor of Ray's that has one GPU, or none, and talks to its node's daemon."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .. import ConnectFailed, ConnectionLost, DeviceFault, DeviceLost, KopsError, QuotaExceeded, ShuttingDown
from .._companions import VERSION, Stopwatch
from . import _travel
from ._client import WorkerClient, connect, use_device
from ._errors import packed
from ._place import device_of
from ._ray import ray
from ._recording import Begun, Part, Recording
from ._stats import Snapshot

SNAPSHOT_S = 1.0  # the statistics that go with results are no more frequent
PATIENCE_S = 15.0  # a daemon that has gone may take so long to come back
PAUSE_S = 0.1
HELD_BACK_MOST_S = 600.0  # that an item waits where the daemon refuses this user's kernels, because others faulted
THREADS = 16  # of a worker: calls under way at one time
ASIDE = "aside"  # the concurrency group of what a worker tells while it has items: threads of its own
ASIDE_THREADS = 2
DAEMON_LOST = (ConnectionLost, ConnectFailed, ShuttingDown, DeviceLost)


@dataclass(frozen=True)
class WorkerInfo:
    """A worker of a pool.

    `node` is the name of its machine, `node_id` Ray's id of it; `device` and `uuid` are what its calls run on, `daemon` the process
    id of the daemon there, and `instance` tells that daemon from all others.
    """

    number: int
    node: str
    node_id: str
    pid: int
    device: str
    uuid: str
    on_gpu: bool
    daemon: int
    instance: str


@dataclass(frozen=True)
class Outcome:
    """What became of an item: "done" with its value, "failed" with the item's own error, "beside" with one that may be due to another item
    whose kernel ran at the same time, or "lost" because the daemon went away. `held_s`: so long the daemon took no kernels of this user."""

    kind: str
    value: Any = None
    error: bytes | None = None
    text: str = ""
    held_s: float = 0.0
    seconds: float = 0.0
    span: tuple[int, int] = 0, 0  # when it was worked on, ns of the node's CLOCK_MONOTONIC
    instance: str = ""  # of the daemon
    snapshots: tuple[Snapshot, ...] = ()


class Turn:
    """An item at a worker. `setup`: getting ready for the work, which the first item sees to, and the first after a daemon is lost."""

    def __init__(self) -> None:
        self.setup = Stopwatch()
        self.work = Stopwatch()
        self.began = time.monotonic_ns()

    @property
    def span(self) -> tuple[int, int]:
        return self.began, time.monotonic_ns()


class HeldBack:
    """The waits of an item whose kernels the daemon refuses for a while, since others of this user faulted."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wait(self, error: QuotaExceeded) -> None:
        """Raises the error where that is about another quota, or where the waits are too long."""
        seconds = float(error.detail.get("retry_after_ms", 0)) / 1e3
        if error.detail.get("quota") != "faults" or not seconds or self.seconds + seconds > HELD_BACK_MOST_S:
            raise error
        self.seconds += seconds
        time.sleep(seconds)


def _goes_on(error: BaseException) -> bool:
    """Only the process that has the GPU was lost."""
    return isinstance(error, KopsError) and error.detail.get("daemon") == "goes_on"


def _may_be_anothers(error: BaseException) -> bool:
    """All workers of a node are one user of its daemon, whose kernels share a process. Where one of them faults, the daemon says so to each
    that ran, and of how many it may be; what else was under way is lost."""
    return isinstance(error, DeviceFault) and int(error.detail.get("suspects", 1)) > 1 or isinstance(error, DeviceLost) and _goes_on(error)


class Worker:
    """Made by `Pool`, which makes it an actor with THREADS threads. Of most work one item is done at a time: its call sees to that."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._lock = threading.RLock()  # of all that follows
        self._given: list[str] = []
        self._client: WorkerClient | None = None
        self._job: str | None = None
        self._call: Any = None  # the job's on this connection
        self._recordings: dict[str, Recording] = {}  # by the daemons' instances; without the lock
        self._turns: dict[str, Turn] = {}  # by their tokens; without the lock
        self._told = 0.0
        self._news: list[Snapshot] = []  # of daemons that the driver does not know yet

    def hello(self, version: str) -> tuple[str, str, WorkerInfo | None, tuple[Snapshot, ...]]:
        """Connects to the daemon; its errors tell why that is not possible. Nothing but its own version and the node's name, of a driver
        with another version."""
        node = socket.gethostname()
        if version != VERSION:
            return VERSION, node, None, ()
        context = ray.get_runtime_context()
        with self._lock:
            self._given = [str(one) for one in context.get_accelerator_ids().get("GPU", ())]
            client = self._connected(0)
            info, place = client.info, client.own_device
            if place is None:
                place = next((device for device in info.devices if device.default), info.devices[0])
            me = WorkerInfo(
                self._number, node, context.get_node_id(), os.getpid(), place.name, place.uuid, bool(self._given), info.pid, info.instance
            )
            return VERSION, node, me, self._word()

    @ray.method(concurrency_group=ASIDE)  # type: ignore[untyped-decorator,unused-ignore]
    def turns(self) -> dict[str, tuple[float, float]]:
        """Of each item here the seconds for which it has been worked on, and those of its setup. It answers while items hold all other
        threads."""
        return {token: (turn.work.seconds, turn.setup.seconds) for token, turn in self._turns.copy().items()}

    @ray.method(concurrency_group=ASIDE)  # type: ignore[untyped-decorator,unused-ignore]
    def clock(self) -> int:
        """CLOCK_MONOTONIC of this node, in ns."""
        return time.monotonic_ns()

    @ray.method(concurrency_group=ASIDE)  # type: ignore[untyped-decorator,unused-ignore]
    def record(self) -> Begun:
        """From now on the daemon's work is recorded, until `recorded` ends that."""
        with self._lock:
            made = Recording(self._connected(0))
        left = self._recordings.pop(made.instance, None)  # by work that did not come to its end
        if left is not None:
            left.stop()
        made.start()
        self._recordings[made.instance] = made
        return made.begun

    @ray.method(concurrency_group=ASIDE)  # type: ignore[untyped-decorator,unused-ignore]
    def recorded(self, instance: str, end: bool) -> Part:
        """What was recorded of that daemon since this was last asked."""
        recording = self._recordings[instance]
        if end:
            del self._recordings[instance]
            recording.stop()
        return recording.take()

    def run(self, token: str, job: str, what: Sequence[Any], names: Sequence[str], *values: Any) -> Outcome:
        """One item. `what` is a list with a reference to what is called, which is fetched once a job; `names` are those of the last
        values."""
        turn = self._turns[token] = Turn()
        client: WorkerClient | None = None
        held = HeldBack()
        try:
            split = len(values) - len(names)
            arguments = values[:split], dict(zip(names, values[split:], strict=True))
            while True:
                client, call = self._ready(turn, job, what)
                with call.lock:
                    if client is self._client:  # else the daemon went while the item waited for its turn
                        turn.began = time.monotonic_ns()
                        try:
                            value = call(*arguments, turn.work)
                            break
                        except QuotaExceeded as error:
                            held.wait(error)
        except (Exception, SystemExit) as error:
            if isinstance(error, DAEMON_LOST) and not _goes_on(error):
                self._after(client, error)
                return Outcome("lost", text=f"{type(error).__name__}: {error}", span=turn.span)
            made, text = packed(error)
            return Outcome("beside" if _may_be_anothers(error) else "failed", error=made, text=text, held_s=held.seconds, span=turn.span)
        finally:
            del self._turns[token]
        span, due = turn.span, time.monotonic() - self._told >= SNAPSHOT_S
        return Outcome("done", value, None, "", held.seconds, turn.work.seconds, span, client.instance, self.stats() if due else ())

    def stats(self) -> tuple[Snapshot, ...]:
        """What the driver is told of the daemons' statistics; nothing where the daemon has gone."""
        with self._lock:
            client = self._client
            try:
                return self._word()
            except KopsError as error:
                self._after(client, error)
                return ()

    def _after(self, client: WorkerClient | None, error: KopsError) -> None:
        """The daemon went away: the next item has a new client. Not where only the process that has the GPU was lost."""
        with self._lock:
            if client is None or client is not self._client or _goes_on(error):
                return
            self._client = None
            self._end_job()
            client.close()

    def _end_job(self) -> None:
        """What has threads of its own ends beside the work of others that it still has."""
        call, self._call, self._job = self._call, None, None
        if hasattr(call, "close"):
            threading.Thread(target=call.close, daemon=True).start()

    def _connected(self, patience_s: float = PATIENCE_S) -> WorkerClient:
        """The client; a new one where the daemon has gone, which is started anew where nothing else does that."""
        if self._client is None:
            until = time.monotonic() + patience_s
            while True:
                try:
                    made = connect()
                    break
                except DAEMON_LOST:
                    if time.monotonic() > until:
                        raise
                    time.sleep(PAUSE_S)
            try:
                use_device(made, device_of(self._given, made.devices, f"the daemon of {socket.gethostname()}"))
                self._news.append(self._snapshot(made))
            except BaseException:
                made.close()
                raise
            self._client = made
        return self._client

    def _ready(self, turn: Turn, job: str, what: Sequence[Any]) -> tuple[WorkerClient, Any]:
        """The client, and what is called, for this job and on this connection."""
        with self._lock, turn.setup:
            client = self._connected()
            if self._job != job:
                self._end_job()
                self._call, self._job = _travel.unpack(ray.get(what[0])).caller(client, bool(self._given)), job
            return client, self._call

    def _word(self) -> tuple[Snapshot, ...]:
        now = self._snapshot(self._connected())
        news, self._news = self._news, []
        return (*news, now)

    def _snapshot(self, client: WorkerClient) -> Snapshot:
        self._told = time.monotonic()
        return Snapshot(client.info.instance, self._told, [dict(row) for row in client.stats().get("ops", ())])
