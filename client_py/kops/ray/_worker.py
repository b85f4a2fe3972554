"""A worker: an actor of Ray's that has one GPU, or none, and talks to its node's daemon. One thread; one item at a time."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .._base.errors import ConnectFailed, ConnectionLost, DeviceLost, KopsError, ShuttingDown
from .._version import VERSION
from . import _travel
from ._client import WorkerClient, connect, use_device
from ._errors import packed
from ._place import device_of
from ._ray import ray
from ._stats import Snapshot

SNAPSHOT_S = 1.0  # the statistics that go with results are no more frequent
PATIENCE_S = 15.0  # a daemon that has gone may take so long to come back
PAUSE_S = 0.1
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
    """What became of an item: "done" with its value, "failed" with the item's own error, or "lost" because the daemon went away."""

    kind: str
    value: Any = None
    error: bytes | None = None
    text: str = ""
    seconds: float = 0.0
    instance: str = ""  # of the daemon
    snapshots: tuple[Snapshot, ...] = ()


class Worker:
    """Made by `Pool`, which makes it an actor."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._client: WorkerClient | None = None
        self._given: list[str] = []
        self._told = 0.0
        self._news: list[Snapshot] = []  # of daemons that the driver does not know yet
        self._job: str | None = None
        self._packed: Any = None
        self._call: Any = None
        self._kept: dict[str, Any] = {}  # what items of the job share, by key

    def hello(self, version: str) -> tuple[str, str, WorkerInfo | None, tuple[Snapshot, ...]]:
        """Connects to the daemon; its errors tell why that is not possible. Nothing but its own version and the node's name, of a driver
        with another version."""
        node = socket.gethostname()
        if version != VERSION:
            return VERSION, node, None, ()
        context = ray.get_runtime_context()
        self._given = [str(one) for one in context.get_accelerator_ids().get("GPU", ())]
        client = self._connected(0)
        info, place = client.info, client.place
        if place is None:
            place = next((device for device in info.devices if device.default), info.devices[0])
        me = WorkerInfo(
            self._number, node, context.get_node_id(), os.getpid(), place.name, place.uuid, bool(self._given), info.pid, info.instance
        )
        return VERSION, node, me, self._word()

    def run(self, job: str, what: Sequence[Any], names: Sequence[str], *values: Any) -> Outcome:
        """One item. `what` is a list with a reference to what is called, which is fetched once a job; `names` are those of the last
        values."""
        began = time.monotonic()
        try:
            call = self._ready(job, what)
            split = len(values) - len(names)
            value = call(values[:split], dict(zip(names, values[split:], strict=True)))
        except DAEMON_LOST as error:
            self._after(error)
            return Outcome("lost", text=f"{type(error).__name__}: {error}", seconds=time.monotonic() - began)
        except (Exception, SystemExit) as error:
            made, text = packed(error)
            return Outcome("failed", error=made, text=text, seconds=time.monotonic() - began)
        seconds = time.monotonic() - began
        due = time.monotonic() - self._told >= SNAPSHOT_S
        try:
            return Outcome("done", value, seconds=seconds, instance=self._instance, snapshots=self._word() if due else ())
        except KopsError as error:  # the result is there, whatever became of the daemon
            self._after(error)
            return Outcome("done", value, seconds=seconds)

    def stats(self) -> tuple[Snapshot, ...]:
        """Nothing where the daemon has gone."""
        try:
            return self._word()
        except KopsError as error:
            self._after(error)
            return ()

    @property
    def _instance(self) -> str:
        return "" if self._client is None else self._client.info.instance

    def _after(self, error: KopsError) -> None:
        """The daemon went away: the next item has a new client. Not where only the process that has the GPU was lost."""
        if isinstance(error, DAEMON_LOST) and error.detail.get("daemon") != "goes_on":
            client, self._client, self._call, self._job = self._client, None, None, None
            if client is not None:
                client.close()

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
            except BaseException:
                made.close()
                raise
            self._client = made
            self._news.append(self._snapshot(made))
        return self._client

    def _ready(self, job: str, what: Sequence[Any]) -> Any:
        """What is called, for this job and on this connection."""
        client = self._connected()
        if self._job != job:
            if self._packed is None or self._packed[0] != job:
                self._kept.clear()
                self._packed = job, ray.get(what[0])
            made = _travel.unpack(self._packed[1])
            self._call, self._job = made.caller(client, bool(self._given), self._kept), job
        return self._call

    def _word(self) -> tuple[Snapshot, ...]:
        """What the driver is told of the daemons' statistics."""
        now = self._snapshot(self._connected())
        news, self._news = self._news, []
        return (*news, now)

    def _snapshot(self, client: WorkerClient) -> Snapshot:
        self._told = time.monotonic()
        return Snapshot(client.info.instance, self._told, [dict(row) for row in client.stats().get("ops", ())])
