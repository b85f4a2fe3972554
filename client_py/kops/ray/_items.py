"""The items of a piece of work: how they are to be done, which get a node for themselves, which take longer than they may, and how far the
work is."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import BadArgument
from ._pool import Member
from ._travel import GivenUp, ray
from ._worker import THREADS


@dataclass(eq=False)
class Item:
    """`tries` counts the workers that were lost while they had this item alone, or that worked on it for too long, `losses` the daemons,
    and data in Ray's memory, that went away meanwhile, for whatever reason. A `suspect` was with others when a worker or a daemon was lost:
    it gets a worker for itself, which tells. `faults` counts errors that may be due to an item of another worker: it gets a node for
    itself."""

    index: int
    values: Sequence[Any]  # by position, then by name
    names: Sequence[str] = ()
    tries: int = 0
    losses: int = 0
    faults: int = 0
    suspect: bool = False
    token: str = ""  # names the item's present turn at a worker
    note: str = ""  # for the maker of the item


@dataclass
class Plan:
    """The options of a piece of work, which are those of `map`."""

    what: str  # the progress bar's title
    total: int | None = None
    ordered: bool = False
    errors: str = "raise"
    tries: int = 3
    timeout: float | None = None
    in_flight: int | None = None
    progress: bool | None = None
    trace: str | os.PathLike[str] | None = None  # file of the trace
    given_up: Callable[[Item, GivenUp], Any] | None = None  # result of an item that was given up; None: the error is the result

    def __post_init__(self) -> None:
        if self.errors not in ("raise", "return"):
            raise BadArgument(f'errors must be "raise" or "return", not {self.errors!r}', {"key": "errors"})
        if self.tries < 1:
            raise BadArgument(f"tries={self.tries}: at least one is needed", {"key": "tries"})
        if self.in_flight is not None and not 1 <= self.in_flight <= THREADS:
            raise BadArgument(f"in_flight={self.in_flight}: a worker has 1 to {THREADS} items at one time", {"key": "in_flight"})
        if self.timeout is not None and not self.timeout > 0:
            raise BadArgument(f"timeout={self.timeout}: seconds that a worker may work on one item, or None", {"key": "timeout"})
        folder = os.path.dirname(os.path.abspath(self.trace)) if self.trace is not None else ""
        if folder and not os.access(folder, os.W_OK):
            raise BadArgument(f"trace={str(self.trace)!r}: {folder} is no folder in which files can be written", {"key": "trace"})


# Alone: an item's errors may come from another item beside it, in the process that has the node's GPUs

class Alone:
    """One of them at a time. Its node gets no other item from when it is wanted, so that what is there ends, until it has ended. Workers of
    a node are one user of its daemon, so their kernels share an executor. When that is lost, only an item that was alone is known to be at
    fault."""

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self._node: str | None = None  # node that is kept for the item
        self._doing: Item | None = None

    def next(self, able: Sequence[Member], ready: Sequence[Member]) -> Iterator[tuple[Member, Item]]:
        """The next item, and the worker that is to have it, if it is time. `able`: those of the workers that may be given items."""
        under_way = {_node_of(member): 0 for member in ready}
        for member in ready:
            under_way[_node_of(member)] += len(member.doing)
            if self._doing is not None and any(item is self._doing for item in member.doing.values()):
                return
        self._doing = None
        if not self.items or self._node not in under_way:
            self._node = None
        if not self.items or not able:
            return
        if self._node is None:
            self._node = min(map(_node_of, able), key=lambda node: under_way[node])
        free = next((member for member in able if _node_of(member) == self._node), None)
        if free is not None and not under_way[self._node]:
            self._doing = self.items.popleft()
            yield free, self._doing

    def allows(self, member: Member) -> bool:
        """Whether the worker may be given other items."""
        return _node_of(member) != self._node


def _node_of(member: Member) -> str:
    return member.info.node_id if member.info is not None else ""


# Late items: a worker tells how long it has worked on each of its items, since the driver cannot know which one it is
# working on. Workers are asked as seldom as possible, and never waited for.

SETUP_S = 60.0  # time that a worker may take to get ready for the work, unless an item may take longer
SILENT_S = 10.0  # silence after which a worker is taken to be busy with work that lets none of its other threads run
SOON_S = 0.05


class Late:
    """`limit`: the seconds that a worker may work on an item; None: as long as it likes."""

    def __init__(self, limit: float | None) -> None:
        self._limit = limit
        self._due: dict[Member, float] = {}  # for workers that have items: time of the next question
        self._asked: dict[Any, Member] = {}  # by the references of the answers
        self._heard: dict[Member, float] = {}  # for workers that were asked: time of the question, or of the last item's end after it
        self._found: list[tuple[Member, list[str], str]] = []

    def given(self, member: Member) -> None:
        """An item was given to the worker. None of its items is late before it has had one for as long as an item may take."""
        if self._limit is not None and member not in self._heard:
            self._due.setdefault(member, time.monotonic() + self._limit)

    def ask(self, members: Iterable[Member]) -> list[Any]:
        """Asks those that are to be asked now. The references to wait for, which `told` takes."""
        if self._limit is None:
            return []
        now, present = time.monotonic(), set(members)
        self._due = {member: due for member, due in self._due.items() if member in present and member.doing}
        self._asked = {reference: member for reference, member in self._asked.items() if member in present}
        self._heard = {member: at for member, at in self._heard.items() if member in present}
        for member, due in list(self._due.items()):
            if due <= now:
                del self._due[member]
                self._asked[member.actor.turns.remote()] = member
                self._heard[member] = now
        return list(self._asked)

    def pause(self, longest: float) -> float:
        """How long may be waited for before somebody is to be asked."""
        return max(0.0, min([longest, *(due - time.monotonic() for due in self._due.values())]))

    def ended(self, member: Member) -> None:
        """Notes that an item has ended at the worker."""
        if member in self._heard:
            self._heard[member] = time.monotonic()

    def told(self, reference: Any) -> None:
        """Takes the answer of a worker."""
        if self._limit is None or reference not in self._asked:
            return
        member = self._asked.pop(reference)
        del self._heard[member]
        try:
            turns: Mapping[str, tuple[float, float]] = ray.get(reference)
        except ray.exceptions.RayError:  # where the worker is lost its items tell that, too
            self._due[member] = time.monotonic() + SILENT_S
            return
        setup = max(self._limit, SETUP_S)
        own = {item.token for item in member.doing.values()}
        turns = {token: seconds for token, seconds in turns.items() if token in own}
        late = [token for token, seconds in turns.items() if seconds[0] > self._limit]
        slow = [token for token, seconds in turns.items() if seconds[1] > setup]
        if late:
            self._found.append((member, late, f"it took longer than {self._limit:g} s (timeout)"))
        elif slow:
            self._found.append((member, slow, f"its worker was not ready for it within {setup:g} s"))
        longest = max((seconds[0] for seconds in turns.values()), default=0.0)
        self._due[member] = time.monotonic() + max(self._limit - longest, SOON_S)

    def found(self) -> Iterator[tuple[Member, list[str], str]]:
        """Workers that hold late items, the tokens of these, and why they are late. No tokens: the worker does not tell."""
        found, self._found = self._found, []
        yield from found
        if self._limit is None:
            return
        silent = max(self._limit, SILENT_S)
        for member, heard in list(self._heard.items()):
            if member.doing and time.monotonic() - heard > silent:
                yield member, [], f"it took longer than {self._limit:g} s (timeout), and its worker answered nothing"


# Progress: tqdm's bar where that is installed, else a line that is written over and over on a terminal

EVERY_S = 0.2  # between two lines on a terminal
SELDOM_S = 10.0  # seconds between lines elsewhere, where each is a new one


class Progress:
    """`shown`: None where stderr is a terminal. `total`: None where that is not known."""

    def __init__(self, what: str, total: int | None, shown: bool | None) -> None:
        self._what, self._total = what, total
        self._bar: Any = None
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._shown = self._terminal if shown is None else shown
        self._done = self._retried = 0
        self._began = self._last = time.monotonic()
        self._written = False
        if self._shown:
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self._bar = tqdm(total=total, desc=what, file=sys.stderr)

    def step(self, workers: int, retried: int) -> None:
        """Counts one more item as done."""
        self._done += 1
        self._retried = retried
        if self._bar is not None:
            self._bar.set_postfix(self._more(workers), refresh=False)
            self._bar.update()
        elif self._shown and time.monotonic() - self._last >= (EVERY_S if self._terminal else SELDOM_S):
            self._write(workers)

    def _more(self, workers: int) -> dict[str, int]:
        return {"workers": workers, **({"again": self._retried} if self._retried else {})}

    def _write(self, workers: int) -> None:
        self._last = time.monotonic()
        rate = self._done / max(self._last - self._began, 1e-9)
        of = "" if self._total is None else f"/{self._total}"
        more = ", ".join(f"{name} {count}" for name, count in self._more(workers).items())
        end = "\x1b[K\r" if self._terminal else "\n"
        print(f"{self._what}: {self._done}{of}, {rate:.3g}/s, {more}", end=end, file=sys.stderr, flush=True)
        self._written = True

    def close(self, workers: int) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._shown and self._done and (self._written or not self._terminal):
            self._write(workers)
            if self._terminal:
                print(file=sys.stderr)
        self._shown, self._bar = False, None
