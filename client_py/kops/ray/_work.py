"""A piece of work: its items are given to the workers as these become free, given again where a worker is lost, and handed out as
they end, each once. An item may get a node for itself, and may take longer than it should."""

from __future__ import annotations

import itertools
import os
import sys
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import BadArgument
from .._companions import log
from . import _worker
from ._pool import Member, Pool
from ._stats import ClusterStats
from ._trace import ClusterTrace, Tracing, write
from ._worker import LOST, THREADS, GivenUp, ray, unpacked


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


TICK_S = 1.0  # between two looks at whether workers begin
QUEUE_S = 0.05  # seconds of work that may wait at a worker beside the item that it does
QUEUE_MOST = 8
WINDOW = 4  # with ordered=True: results that wait for an earlier one, times the workers' items
WINDOW_LEAST = 16


class Work:
    """Its state, and `results`, which does it. Nothing that it refers to refers to it: it ends with the iterator over the results."""

    def __init__(self, job: Any, items: Iterable[Item], plan: Plan, pool: Pool | None, how: Mapping[str, Any]) -> None:
        if pool is not None and how:
            raise BadArgument(f"{sorted(how)[0]}= is the pool's: give it to kops.ray.Pool", {"key": sorted(how)[0]})
        self._packed = _worker.pack(job)
        self._plan, self._items = plan, iter(items)
        self._own = pool is None
        self._pool, self._how = pool, how
        self._again: deque[Item] = deque()
        self._alone = Alone()  # items that are to have a node for themselves
        self._exhausted = False
        self._mean_s: float | None = None  # the mean time of an item at a worker
        self._next = 0  # index of the next ordered result
        self._waiting: dict[int, Any] = {}  # ordered results behind one that is not there
        self._late = Late(plan.timeout)
        self._tracing = Tracing(plan.trace) if plan.trace is not None else None
        self._turns = itertools.count()  # numbers of the items' turns at workers
        self._stats: ClusterStats | None = None
        self.trace: ClusterTrace | None = None
        self.retried = 0  # items that were given to a worker once more

    def stats(self) -> ClusterStats:
        if self._stats is not None:
            return self._stats
        return ClusterStats(nodes=[], ops=[]) if self._pool is None else self._pool.gathered.stats()

    def results(self) -> Generator[tuple[int, Any], None, None]:
        pool = self._pool if self._pool is not None else Pool(**self._how)
        self._pool = pool
        pool.check_open()
        self._job, self._reference = uuid.uuid4().hex, [ray.put(self._packed)]
        progress = Progress(self._plan.what, self._plan.total, self._plan.progress)
        pool.busy, whole = True, False
        try:
            if not self._own:
                pool.last_words()
            pool.gathered.begin()
            while self._give(pool) or not self._exhausted or self._again or self._alone.items:
                for index, value in self._ended(pool):
                    progress.step(len(pool.ready), self.retried)
                    for one in self._in_order(index, value):
                        self._give(pool)
                        yield one
            whole = True
        finally:
            progress.close(len(pool.ready))
            self._finish(pool, whole)

    def _finish(self, pool: Pool, whole: bool) -> None:
        try:
            if whole:
                pool.last_words()
            self._stats = pool.gathered.stats()
            if self._tracing is not None:
                self._tracing.finish(pool)
                self.trace = write(self._tracing)
        finally:
            for member in pool.ready:
                member.doing.clear()
            pool.busy = False
            if self._own:
                pool.close()

    # Giving

    def _take(self, pool: Pool) -> Item | None:
        """The next item to be done; None where there is none, or none yet."""
        if self._again:
            return self._again.popleft()
        if self._exhausted:
            return None
        if self._plan.ordered and len(self._waiting) >= max(WINDOW_LEAST, WINDOW * pool.capacity * self._depth):
            return None
        item = next(self._items, None)
        self._exhausted = item is None
        return item

    @property
    def _depth(self) -> int:
        """The items that a worker has at one time. Short ones wait at the worker, so that it need not wait for them; long ones do not,
        since another worker may be free earlier."""
        if self._plan.in_flight is not None:
            return self._plan.in_flight
        if self._mean_s is None or self._mean_s > 10 * QUEUE_S:
            return 1
        return min(QUEUE_MOST, 2 + int(QUEUE_S / max(self._mean_s, 1e-6)))

    def _give(self, pool: Pool) -> bool:
        """Gives items to the workers that have room, each time to one with the fewest; whether any is under way."""
        for member, alone in self._alone.next([member for member in pool.ready if self._may_work(member)], pool.ready):
            self._hand(member, alone)
        while True:
            depth = 1 if self._again and self._again[0].suspect else self._depth
            able = (
                member for member in pool.ready
                if len(member.doing) < depth and not any(item.suspect for item in member.doing.values())
                and self._may_work(member) and self._alone.allows(member)
            )  # fmt: skip
            free = min(able, key=lambda member: len(member.doing), default=None)
            item = self._take(pool) if free is not None else None
            if free is None or item is None:
                return any(member.doing for member in pool.ready)
            self._hand(free, item)

    def _hand(self, member: Member, item: Item) -> None:
        item.token = f"{self._job}.{next(self._turns)}"
        member.doing[member.actor.run.remote(item.token, self._job, self._reference, tuple(item.names), *item.values)] = item
        self._late.given(member)

    def _may_work(self, member: Member) -> bool:
        return self._tracing is None or self._tracing.may_work(member)

    # Taking

    def _ended(self, pool: Pool) -> Iterator[tuple[int, Any]]:
        """Waits until something has ended. Yields the results among that."""
        pool.check_started()
        starting = pool.starting()
        doing = {reference: member for member in pool.ready for reference in member.doing}
        asked = self._late.ask(pool.ready)
        traced = self._tracing.ask(pool.ready) if self._tracing is not None else []
        references = [*doing, *starting, *asked, *traced]
        ended, _ = ray.wait(references, num_returns=1, timeout=self._late.pause(TICK_S))
        if ended:
            ended, _ = ray.wait(references, num_returns=len(references), timeout=0)
        for reference in ended:
            if reference in starting:
                pool.greet(starting[reference])
        for reference, member in doing.items():  # in the order in which they were given
            if reference in ended and reference in member.doing:
                yield from self._one(pool, member, reference)
        for reference in asked:
            if reference in ended:
                self._late.told(reference)
        if self._tracing is not None:
            self._tracing.took(ended)
        for member, tokens, why in self._late.found():
            yield from self._overdue(pool, member, tokens, why)

    def _one(self, pool: Pool, member: Member, reference: Any) -> Iterator[tuple[int, Any]]:
        try:
            outcome = ray.get(reference)
        except LOST as error:
            yield from self._lost(pool, member, reference, error)
            return
        except ray.exceptions.RayError as error:  # for example, an argument that the worker cannot read
            yield from self._failed(member.doing.pop(reference), error)
            return
        item: Item = member.doing.pop(reference)
        self._late.ended(member)
        node = member.info.node if member.info is not None else ""
        if self._tracing is not None:
            self._tracing.item(member, item.index, outcome)
        for word in outcome.snapshots:
            pool.gathered.take(node, word)
        if outcome.held_s:
            log.warning("item %d waited %.0f s: the daemon of %s takes no kernels for a while after some that faulted (executors.faults)",
                        item.index, outcome.held_s, node)  # fmt: skip
        if outcome.kind == "done":
            self._mean_s = outcome.seconds if self._mean_s is None else 0.8 * self._mean_s + 0.2 * outcome.seconds
            pool.gathered.count(outcome.instance)
            yield item.index, outcome.value
        elif outcome.kind == "beside" and item.faults < self._plan.tries:
            item.faults += 1
            self.retried += 1
            self._alone.items.append(item)
        elif outcome.kind in ("failed", "beside"):
            yield from self._failed(item, unpacked(outcome.error, outcome.text, item.index, node))
        else:
            item.losses += 1
            item.suspect = True
            yield from self._once_more(item, outcome.text, node)

    def _failed(self, item: Item, error: BaseException) -> Iterator[tuple[int, Any]]:
        if self._plan.errors == "raise":
            raise error
        yield item.index, error

    def _lost(self, pool: Pool, member: Member, reference: Any, error: Exception) -> Iterator[tuple[int, Any]]:
        """A worker is lost, or a result of its. Which of several items is to blame is not known: of some that it had done Ray may have
        lost the word."""
        why, node = _first_line(error), member.info.node if member.info is not None else ""
        if isinstance(error, ray.exceptions.ObjectLostError):  # a result, or an argument that was in Ray's memory; the worker may go on
            item = member.doing.pop(reference)
            item.losses += 1
            yield from self._once_more(item, why, node)
            return
        yield from self._end(pool, member, why, None)

    def _end(self, pool: Pool, member: Member, why: str, to_blame: Sequence[Item] | None) -> Iterator[tuple[int, Any]]:
        """A worker is lost, or is ended for the sake of some of its items; None: it is not known of which. Those beside them were only in
        its queue."""
        items, node = list(member.doing.values()), member.info.node if member.info is not None else ""
        member.doing.clear()
        pool.lose(member, why)
        if to_blame is None and len(items) > 1:
            for item in items:
                item.suspect = True
        elif to_blame is None:
            to_blame = items
        others = [item for item in items if item not in (to_blame or ())]
        self.retried += len(others)
        self._again.extendleft(reversed(others))
        for item in to_blame or ():
            item.tries += 1
            yield from self._once_more(item, why, node)

    def _once_more(self, item: Item, why: str, node: str) -> Iterator[tuple[int, Any]]:
        """Another worker may do the item, unless too many have tried."""
        if item.tries < self._plan.tries and item.losses < 2 * self._plan.tries:
            self.retried += 1
            self._again.append(item)
            return
        tries = max(item.tries, item.losses)
        error = GivenUp(
            f"item {item.index} was given up after {tries} {'try' if tries == 1 else 'tries'}, at each of which its worker, its daemon or "
            f"its data were lost; the last on {node}: {why}",
            {"index": item.index, "tries": tries, "node": node, "why": why},
        )
        if self._plan.given_up is not None:
            yield item.index, self._plan.given_up(item, error)
        else:
            yield from self._failed(item, error)

    def _overdue(self, pool: Pool, member: Member, tokens: Sequence[str], why: str) -> Iterator[tuple[int, Any]]:
        """A worker holds these items for too long, or any of its items where it does not tell which, and is ended. What has ended there
        meanwhile counts."""
        ended, _ = ray.wait(list(member.doing), num_returns=len(member.doing), timeout=0) if member.doing else ([], [])
        for reference in ended:
            if reference in member.doing:
                yield from self._one(pool, member, reference)
        late = [item for item in member.doing.values() if item.token in tokens]
        if member in pool.ready and (late or (member.doing and not tokens and not ended)):
            yield from self._end(pool, member, why, late or None)

    # Handing out

    def _in_order(self, index: int, value: Any) -> Iterator[tuple[int, Any]]:
        if not self._plan.ordered:
            yield index, value
            return
        self._waiting[index] = value
        while self._next in self._waiting:
            self._next += 1
            yield self._next - 1, self._waiting.pop(self._next - 1)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:1])}"[:300]


class Run(Iterator[tuple[int, Any]]):
    """Work that is under way: an iterator of `(index, result)`, in the order in which they end, or with `ordered=True` in that of the
    items.

    The workers begin when the first result is asked for. `close()`, or the end of a `with` block, ends the work early; so does an
    error, or Ctrl-C. `stats()` tells what the nodes' daemons did for it.
    """

    def __init__(self, work: Work) -> None:
        self._work = work
        self._results = work.results()

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> tuple[int, Any]:
        return next(self._results)

    def close(self) -> None:
        """Ends the work; a pool of its own ends with it. Of a given pool the workers end the items that they have."""
        self._results.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def retried(self) -> int:
        """The items that were given to a worker once more: one was lost, or a kernel that ran beside theirs faulted."""
        return self._work.retried

    @property
    def trace(self) -> ClusterTrace | None:
        """The content of the file that `trace=` named, once the work has ended."""
        return self._work.trace

    def stats(self) -> ClusterStats:
        """The work of the nodes' daemons since this work began, added up. While it is under way a daemon's part is some seconds old."""
        return self._work.stats()
