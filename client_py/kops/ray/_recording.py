"""In a worker: what its node's daemon does, recorded for the trace of all nodes."""

from __future__ import annotations

import itertools
import threading
import time
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import Client
from ..profiler._recorder import Decoder, Event, Recorder
from ._client import WorkerClient

EVENTS = 50_000  # of a recording; later ones are counted as dropped
COLUMNS = 13  # of an event that are kept, in PROTOCOL.md's order


@dataclass(frozen=True)
class Part:
    """What a recording has from one reading on to the next. `rows` are the events one behind the other, whose times count from
    `origin`. `until`: the daemon had told all that had ended then. `why`: it tells nothing any more."""

    origin: int = 0
    until: int = 0
    dropped: int = 0
    why: str = ""
    kinds: list[Mapping[str, Any]] = field(default_factory=list)
    clients: list[Mapping[str, Any]] = field(default_factory=list)
    rows: array[int] = field(default_factory=lambda: array("Q"))

    @property
    def count(self) -> int:
        return len(self.rows) // COLUMNS


@dataclass(frozen=True)
class Begun:
    """A recording begins, at a time of the node's CLOCK_MONOTONIC in ns. `devices`: names by UUID."""

    instance: str
    daemon: int
    at: int
    devices: dict[str, str]


class Recording(Recorder):
    """Keeps events as numbers: of what a worker holds, and sends, they are the least."""

    def __init__(self, client: WorkerClient, most: int = EVENTS) -> None:
        super().__init__(client.path, False, most)
        self._client = Client.unconnected(client.path, blocking=True, reconnect_timeout=0, autostart=False)
        self._taking = threading.Lock()
        self._room = most
        self._part = Part()
        self.instance, self._daemon = client.info.instance, client.info.pid

    def start(self) -> None:
        """Raises what keeps the daemon from being recorded."""
        try:
            super().start()
        except BaseException:
            self._client.close()
            raise
        self.begun = Begun(self.instance, self._daemon, time.monotonic_ns(), self.devices)

    def _keep(self, reply: Mapping[str, Any]) -> None:
        rows = reply["events"][: self._room]
        self._room -= len(rows)
        self._lost += len(reply["events"]) - len(rows)
        with self._taking:
            part = self._part
            part.rows.extend(itertools.chain.from_iterable([*row, 0, 0][:COLUMNS] for row in rows))
            kinds, clients = [*part.kinds, *reply["kinds"]], [*part.clients, *reply["clients"]]
            origin: int = reply["origin_ns"]
            self._part = Part(origin, origin + reply["now_ns"], reply["dropped"] + self._lost, part.why, kinds, clients, part.rows)

    def _end(self, why: str) -> None:
        with self._taking:
            part = self._part
            self._part = Part(part.origin, part.until, part.dropped, why, part.kinds, part.clients, part.rows)

    def take(self) -> Part:
        """What came since it was last taken."""
        with self._taking:
            part = self._part
            self._part = Part(part.origin, part.until, part.dropped, part.why)
        return part


def events(parts: list[Part]) -> Iterator[Event]:
    """In the driver: the events of one recording."""
    decoder = Decoder()
    for part in parts:
        rows = [part.rows[i : i + COLUMNS].tolist() for i in range(0, len(part.rows), COLUMNS)]
        yield from decoder.events({"origin_ns": part.origin, "kinds": part.kinds, "clients": part.clients, "events": rows})
