"""A piece of work as one trace: each node's daemon is recorded by one of its workers, from before that daemon's first item on. Read every
few seconds, so that little is lost with a worker. At the end all is one file for Perfetto, a group of processes for each daemon."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._companions import log
from ..profiler._chrome import DEVICE_PIDS, Trace
from ..profiler._profile import _to_time_of_day
from ._pool import Member, Pool
from ._worker import EVENTS, Begun, Outcome, Part, events, ray

# Clocks: a node's beside the driver's, as exactly as questions and answers tell

@dataclass(frozen=True)
class Apart:
    """The driver's CLOCK_MONOTONIC less the node's lies between the two, in ns."""

    least: int
    most: int

    @property
    def middle(self) -> int:
        return (self.least + self.most) // 2

    @property
    def uncertain(self) -> int:
        """How far the middle may be off."""
        return (self.most - self.least + 1) // 2


def seen(asked: int, node: int, answered: int) -> Apart:
    """The node's clock was read between the question and the answer, which the driver's has timed."""
    return Apart(asked - node, answered - node)


def narrowed(readings: list[Apart]) -> Apart:
    """By several readings at about one time, all of which are true."""
    least, most = max(one.least for one in readings), min(one.most for one in readings)
    if least > most:  # a clock was set meanwhile, or runs otherwise: the last one is as true as any
        return readings[-1]
    return Apart(least, most)


def over(times: list[Apart]) -> Apart:
    """From the first to the last of these, between which one clock may have gained on the other. A trace has one offset: one that followed
    the clock's drift would stretch slices, so that some would stick out of those around them."""
    return Apart(min(one.least for one in times), max(one.most for one in times))


# The recordings

READ_S = 2.0
LAST_S = 10.0  # seconds for the last messages of all nodes
CLOCK_TIMES, CLOCK_S = 5, 2.0  # questions for a node's clock, and seconds for all of them
ITEMS = EVENTS  # items of a daemon


@dataclass
class Taken:
    """One recording: a daemon has more than one where the worker that recorded it was lost."""

    begun: Begun
    parts: list[Part] = field(default_factory=list)

    @property
    def until(self) -> int:
        return max([self.begun.at, *(part.until for part in self.parts)])

    @property
    def dropped(self) -> int:
        return self.parts[-1].dropped if self.parts else 0


@dataclass
class Node:
    """A daemon. `member` records it; None: nobody does. `missing`: why something of it is not in the trace."""

    name: str
    instance: str
    member: Member | None = None
    asked: Any = None  # the reference of what `member` was asked last
    begins: bool = False  # `member` was asked to begin
    read: float = 0.0
    missing: str = ""
    refused: bool = False
    taken: list[Taken] = field(default_factory=list)
    clocks: list[Apart] = field(default_factory=list)
    items: dict[int, array[int]] = field(default_factory=dict)  # by the workers' process ids: number, begin, end and success of each
    numbers: dict[int, int] = field(default_factory=dict)  # the workers'
    unlisted: int = 0  # items beyond ITEMS

    @property
    def may_work(self) -> bool:
        return self.refused or (self.member is not None and not self.begins)

    def item(self, pid: int, number: int, index: int, span: tuple[int, int], done: bool) -> None:
        if sum(map(len, self.items.values())) >= 4 * ITEMS:
            self.unlisted += 1
            return
        self.numbers[pid] = number
        self.items.setdefault(pid, array("q")).extend((index, *span, done))


class Tracing:
    """In the driver. `begin` and `took` as the work goes on, `finish` at its end."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(path)
        self.began = time.monotonic_ns()
        self.nodes: dict[str, Node] = {}  # by the daemons' instances
        self._instances: dict[Member, str] = {}  # instances of daemons that workers found in place of lost ones

    def _node(self, member: Member) -> Node | None:
        if member.info is None:
            return None
        instance = self._instances.get(member, member.info.instance)
        return self.nodes.setdefault(instance, Node(member.info.node, instance))

    def may_work(self, member: Member) -> bool:
        """Whether the daemon of the worker is recorded, or cannot be."""
        node = self._node(member)
        return node is not None and node.may_work

    def ask(self, members: Iterable[Member]) -> list[Any]:
        """Has daemons recorded, and asks for what was recorded. The references to wait for, which `took` takes."""
        present = list(members)
        self._miss(present)
        for member in present:
            node = self._node(member)
            if node is not None and node.member is None and not node.refused:
                node.member, node.begins, node.asked = member, True, member.actor.record.remote()
        now = time.monotonic()
        for node in self.nodes.values():
            if node.member is not None and node.asked is None and node.taken and not node.refused and now - node.read >= READ_S:
                node.asked = node.member.actor.recorded.remote(node.instance, False)
        return [node.asked for node in self.nodes.values() if node.asked is not None]

    def _miss(self, present: Sequence[Member]) -> None:
        for node in self.nodes.values():
            if node.member is not None and node.member not in present:
                node.member, node.asked, node.begins = None, None, False
                node.missing = node.missing or "the worker that recorded it was lost, with what it had not told yet"

    def took(self, references: Iterable[Any]) -> None:
        """Takes the answers that are there."""
        ended = set(references)
        for node in self.nodes.values():
            if node.asked in ended:
                self._take(node)

    def _take(self, node: Node) -> None:
        asked, node.asked, begins, node.begins = node.asked, None, node.begins, False
        node.read = time.monotonic()
        try:
            answer = ray.get(asked)
        except Exception as error:
            if begins and not isinstance(error, ray.exceptions.RayActorError):
                node.refused, node.member = True, None
                node.missing = f"it could not be recorded: {_cause(error)}"
            return  # a worker that is lost is missed by the pool soon
        if begins:
            node.taken.append(Taken(answer))
            self._look_at_clock(node)
            return
        node.taken[-1].parts.append(answer)
        if answer.why and not node.refused:
            node.refused, node.missing = True, f"its end is missing: {answer.why}"

    def _look_at_clock(self, node: Node) -> None:
        assert node.member is not None
        readings = []
        with contextlib.suppress(Exception):  # the member is lost, or does not answer in time
            for _ in range(CLOCK_TIMES):
                asked = time.monotonic_ns()
                said = ray.get(node.member.actor.clock.remote(), timeout=CLOCK_S)
                readings.append(seen(asked, said, time.monotonic_ns()))
        if readings:
            node.clocks.append(narrowed(readings))

    def item(self, member: Member, index: int, outcome: Outcome) -> None:
        """Notes that a worker has done an item, or tried to."""
        if outcome.instance and member.info is not None and outcome.instance != member.info.instance:
            self._instances[member] = outcome.instance
        node = self._node(member)
        if node is not None and member.info is not None:
            node.item(member.info.pid, member.number, index, outcome.span, outcome.kind == "done")

    def finish(self, pool: Pool) -> None:
        """Collects the last words of all nodes."""
        self._miss(pool.ready)
        last = []
        for node in self.nodes.values():
            if node.member is None or not node.taken:
                continue
            self._look_at_clock(node)
            last.append((node, node.member.actor.recorded.remote(node.instance, True)))
        before = [node.asked for node, _ in last if node.asked is not None]
        waiting = [*before, *(reference for _, reference in last)]
        ended = set(ray.wait(waiting, num_returns=len(waiting), timeout=LAST_S)[0]) if waiting else set()
        self.took(ended)
        for node, reference in last:
            if reference in ended:
                node.asked = reference
                self._take(node)
            elif not node.missing:
                node.missing = f"its end is missing: it did not answer within {LAST_S:g} s"
        for node in self.nodes.values():
            if not node.taken and not node.missing:
                node.missing = "it was lost before its recording began"
            if node.missing:
                log.warning("the trace of %s is not whole: %s", node.name, node.missing)

    def apart(self, node: Node) -> Apart | None:
        return over(node.clocks) if node.clocks else None


def _cause(error: Exception) -> str:
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {cause}".strip().splitlines()[0]


# The file

DEVICES_MOST = 1 << 16  # numbers below DEVICE_PIDS that are devices'
GROUP = 0  # the process that heads a daemon's group: no process has this number


class ClusterTrace(dict[str, Any]):
    """The trace of a piece of work on a cluster: a dictionary with `path` and `nodes`. `print()` shows what is in the file.

    `nodes` has for each daemon its `node`, `daemon` (the process id), `events`, `items`, `dropped` (events and items that had no
    room), `seconds` from the begin of its recording to its end, `clock_us`: how far its times may lie beside those of the driver's machine,
    and `missing`: why something of it is not in the file, empty where all of it is.
    """

    def __str__(self) -> str:
        return "\n".join([f"{self['path']}:", *map(_line, self["nodes"])])


def _line(node: dict[str, Any]) -> str:
    clock = "its clock is not known" if node["clock_us"] is None else f"its clock within {node['clock_us']:.0f} us"
    told = f"{node['node']}: {node['events']} events and {node['items']} items in {node['seconds']:.1f} s, {clock}"
    dropped = f", {node['dropped']} dropped" if node["dropped"] else ""
    return told + dropped + (f"; INCOMPLETE: {node['missing']}" if node["missing"] else "")


class _Numbers:
    """Processes of all nodes have different numbers in the file, those of a daemon one behind the other; arrows, too."""

    def __init__(self) -> None:
        self._next = 1
        self._arrows = 0

    def apply(self, made: list[dict[str, Any]], name: str) -> None:
        """Renumbers the events of one daemon's trace."""
        pids = sorted({one["pid"] for one in made}, key=lambda pid: (0, pid) if pid <= DEVICE_PIDS - DEVICES_MOST else (1, -pid))
        numbers = {pid: number for number, pid in enumerate(pids, self._next)}
        self._next += len(pids)
        arrows = 0
        for one in made:
            number = one["pid"] = numbers[one["pid"]]
            if "id" in one:
                arrows = max(arrows, one["id"])
                one["id"] += self._arrows
            elif one["ph"] == "M" and one["name"] == "process_sort_index":
                one["args"] = {"sort_index": number}
            elif one["ph"] == "M" and one["name"] == "process_name":
                one["args"] = {"name": f"{name}: {one['args']['name']}"}
        self._arrows += arrows


def _items(trace: Trace, node: Node) -> int:
    """Adds the rows of the workers' items. Returns the number of items."""
    count = 0
    for pid, flat in node.items.items():
        rows = sorted(zip(flat[1::4], flat[2::4], flat[0::4], flat[3::4], strict=True))
        slices = ((f"item {index}", begin, end, {} if done else {"failed": True}) for begin, end, index, done in rows)
        trace.add_rows(pid, f"worker {node.numbers[pid]} (pid {pid})", "items", "item", slices)
        count += len(rows)
    return count


def _daemon(node: Node, apart: Apart | None, base: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A daemon's events for the file, and its summary."""
    ahead = apart.middle if apart is not None else 0
    devices = {uuid: name for one in node.taken for uuid, name in one.begun.devices.items()}
    trace = Trace(devices, lambda ns: max(ns + ahead - base, 0) / 1e3)
    found = [event for one in node.taken for event in events(one.parts)]
    first = min((one.begun.at for one in node.taken), default=0)
    until = max((one.until for one in node.taken), default=0)
    said = {
        "node": node.name, "daemon": node.taken[0].begun.daemon if node.taken else 0, "instance": node.instance, "events": len(found),
        "items": 0, "dropped": sum(one.dropped for one in node.taken) + node.unlisted, "seconds": (until - first) / 1e9,
        "clock_us": apart.uncertain / 1e3 if apart is not None else None, "missing": node.missing,
    }  # fmt: skip
    if node.taken:
        head = {name: said[name] for name in ("instance", "events", "dropped", "clock_us", "missing")}
        trace.add_rows(GROUP, f"kopsd (pid {said['daemon']})", "recorded", "recorded", [("recorded", first, until, head)])
    said["items"] = _items(trace, node)
    trace.add_events(found)
    return trace.done(), said


def write(tracing: Tracing) -> ClusterTrace:
    """Writes the file: all of it, or none."""
    apart = {node.instance: tracing.apart(node) for node in tracing.nodes.values()}
    base = tracing.began - max((one.uncertain for one in apart.values() if one is not None), default=0)
    numbers, said = _Numbers(), list[dict[str, Any]]()

    def daemons() -> Iterator[list[dict[str, Any]]]:
        for node in sorted(tracing.nodes.values(), key=lambda node: (node.name, node.taken[0].begun.at if node.taken else 0)):
            made, about = _daemon(node, apart[node.instance], base)
            numbers.apply(made, node.name)
            said.append(about)
            yield made

    path = tracing.path
    beside = f"{path}.{os.getpid()}.part"
    try:
        with gzip.open(beside, "wb") if path.endswith(".gz") else open(beside, "wb") as file:
            file.write(b'{"displayTimeUnit":"ns","baseTimeNanoseconds":%d,"traceEvents":[' % (base + _to_time_of_day()))
            comma = b"\n"
            for made in daemons():
                for one in made:
                    file.write(comma + _text(one))
                    comma = b",\n"
            file.write(b'],\n"otherData":{"kops":%s}}\n' % _text({"nodes": said}))
        os.replace(beside, path)
    except BaseException:
        if os.path.exists(beside):
            os.unlink(beside)
        raise
    return ClusterTrace(path=path, nodes=said)


def _text(value: Any) -> bytes:
    """As kops.profiler writes it: Perfetto shows escapes as they are."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")
