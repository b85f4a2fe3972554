"""A piece of work as one trace: each node's daemon is recorded by one of its workers, from before that daemon's first item on. Read every
few seconds, so that little is lost with a worker."""

from __future__ import annotations

import contextlib
import os
import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._companions import log
from ._clocks import Apart, narrowed, over, seen
from ._pool import Member, Pool
from ._ray import ray
from ._recording import EVENTS, Begun, Part
from ._worker import Outcome

READ_S = 2.0
LAST_S = 10.0  # for the last words of all nodes
CLOCK_TIMES, CLOCK_S = 5, 2.0  # how often a node's clock is asked for, and how long for
ITEMS = EVENTS  # of a daemon


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
    begins: bool = False  # it was asked to begin
    read: float = 0.0
    missing: str = ""
    refused: bool = False
    taken: list[Taken] = field(default_factory=list)
    clocks: list[Apart] = field(default_factory=list)
    items: dict[int, array[int]] = field(default_factory=dict)  # by the workers' process ids: number, begin, end and success of each
    numbers: dict[int, int] = field(default_factory=dict)  # of the workers
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
        self._instances: dict[Member, str] = {}  # of daemons that workers found in place of lost ones

    def _node(self, member: Member) -> Node | None:
        if member.info is None:
            return None
        instance = self._instances.get(member, member.info.instance)
        return self.nodes.setdefault(instance, Node(member.info.node, instance))

    def may_work(self, member: Member) -> bool:
        """The daemon of the worker is recorded, or cannot be."""
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
        """These answers are there."""
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
        with contextlib.suppress(Exception):  # it is lost, or does not answer in time
            for _ in range(CLOCK_TIMES):
                asked = time.monotonic_ns()
                said = ray.get(node.member.actor.clock.remote(), timeout=CLOCK_S)
                readings.append(seen(asked, said, time.monotonic_ns()))
        if readings:
            node.clocks.append(narrowed(readings))

    def item(self, member: Member, index: int, outcome: Outcome) -> None:
        """A worker has done an item, or tried to."""
        if outcome.instance and member.info is not None and outcome.instance != member.info.instance:
            self._instances[member] = outcome.instance
        node = self._node(member)
        if node is not None and member.info is not None:
            node.item(member.info.pid, member.number, index, outcome.span, outcome.kind == "done")

    def finish(self, pool: Pool) -> None:
        """The last words of all nodes."""
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
