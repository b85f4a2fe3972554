"""A piece of work: its items are given to the workers as these become free, given again where a worker is lost, and handed out as
they end, each once."""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._base.errors import BadArgument
from . import _travel
from ._errors import GivenUp, unpacked
from ._pool import Member, Pool
from ._progress import Progress
from ._ray import LOST, ray
from ._stats import ClusterStats
from ._worker import THREADS

TICK_S = 1.0  # between two looks at what takes too long
QUEUE_S = 0.05  # of work that waits at a worker beside the item that it does
QUEUE_MOST = 8
WINDOW = 4  # with ordered=True: results that wait for an earlier one, times the workers' items
WINDOW_LEAST = 16


@dataclass(eq=False)
class Item:
    """`tries` counts the workers that were lost while they had this item alone, `losses` the daemons, and data in Ray's memory, that
    went away meanwhile, for whatever reason. A `suspect` was with others when a worker or a daemon was lost: it gets a worker for itself,
    which tells."""

    index: int
    values: Sequence[Any]  # by position, then by name
    names: Sequence[str] = ()
    tries: int = 0
    losses: int = 0
    suspect: bool = False
    note: str = ""  # of who made it


@dataclass
class Plan:
    """How a piece of work is done; the options of `map`."""

    what: str  # the progress bar's title
    total: int | None = None
    ordered: bool = False
    errors: str = "raise"
    tries: int = 3
    timeout: float | None = None
    in_flight: int | None = None
    progress: bool | None = None
    given_up: Callable[[Item, GivenUp], Any] | None = None  # the result of such an item; None: the error is it

    def __post_init__(self) -> None:
        if self.errors not in ("raise", "return"):
            raise BadArgument(f'errors must be "raise" or "return", not {self.errors!r}', {"key": "errors"})
        if self.tries < 1:
            raise BadArgument(f"tries={self.tries}: at least one is needed", {"key": "tries"})
        if self.in_flight is not None and not 1 <= self.in_flight <= THREADS:
            raise BadArgument(f"in_flight={self.in_flight}: a worker has 1 to {THREADS} items at one time", {"key": "in_flight"})
        if self.timeout is not None and not self.timeout > 0:
            raise BadArgument(f"timeout={self.timeout}: seconds that one item may take, or None", {"key": "timeout"})


class Work:
    """Its state, and `results`, which does it. Nothing that it refers to refers to it: it ends with the iterator over the results."""

    def __init__(self, job: Any, items: Iterable[Item], plan: Plan, pool: Pool | None, how: Mapping[str, Any]) -> None:
        if pool is not None and how:
            raise BadArgument(f"{sorted(how)[0]}= is the pool's: give it to kops.ray.Pool", {"key": sorted(how)[0]})
        self._packed = _travel.pack(job)
        self._plan, self._items = plan, iter(items)
        self._own = pool is None
        self._pool, self._how = pool, how
        self._again: deque[Item] = deque()
        self._exhausted = False
        self._mean_s: float | None = None  # what an item takes at a worker
        self._next = 0  # of the ordered results
        self._waiting: dict[int, Any] = {}  # ordered results behind one that is not there
        self._stats: ClusterStats | None = None
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
            while self._give(pool) or not self._exhausted or self._again:
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
        while True:
            depth = 1 if self._again and self._again[0].suspect else self._depth
            free = min((member for member in pool.ready if _has_room(member, depth)), key=lambda m: len(m.doing), default=None)
            item = self._take(pool) if free is not None else None
            if free is None or item is None:
                return any(member.doing for member in pool.ready)
            if not free.doing:
                free.since = time.monotonic()
            free.doing[free.actor.run.remote(self._job, self._reference, tuple(item.names), *item.values)] = item

    # Taking

    def _ended(self, pool: Pool) -> Iterator[tuple[int, Any]]:
        """Waits until something has ended; the results among that."""
        pool.check_started()
        starting = pool.starting()
        doing = {reference: member for member in pool.ready for reference in member.doing}
        references = [*doing, *starting]
        ended, _ = ray.wait(references, num_returns=1, timeout=TICK_S)
        if ended:
            ended, _ = ray.wait(references, num_returns=len(references), timeout=0)
        for reference in ended:
            if reference in starting:
                pool.greet(starting[reference])
        for reference, member in doing.items():  # in the order in which each worker does them
            if reference in ended and reference in member.doing:
                yield from self._one(pool, member, reference)
        yield from self._overdue(pool)

    def _one(self, pool: Pool, member: Member, reference: Any) -> Iterator[tuple[int, Any]]:
        try:
            outcome = ray.get(reference)
        except LOST as error:
            yield from self._lost(pool, member, reference, error)
            return
        except ray.exceptions.RayError as error:  # such as an argument that cannot be read there
            yield from self._failed(self._take_off(member, reference), error)
            return
        item = self._take_off(member, reference)
        node = member.info.node if member.info is not None else ""
        for word in outcome.snapshots:
            pool.gathered.take(node, word)
        if outcome.kind == "done":
            self._mean_s = outcome.seconds if self._mean_s is None else 0.8 * self._mean_s + 0.2 * outcome.seconds
            pool.gathered.count(outcome.instance)
            yield item.index, outcome.value
        elif outcome.kind == "failed":
            yield from self._failed(item, unpacked(outcome.error, outcome.text, item.index, node))
        else:
            item.losses += 1
            item.suspect = True
            yield from self._once_more(item, outcome.text, node)

    @staticmethod
    def _take_off(member: Member, reference: Any) -> Item:
        item: Item = member.doing.pop(reference)
        member.since = time.monotonic()
        return item

    def _failed(self, item: Item, error: BaseException) -> Iterator[tuple[int, Any]]:
        if self._plan.errors == "raise":
            raise error
        yield item.index, error

    def _lost(self, pool: Pool, member: Member, reference: Any, error: Exception) -> Iterator[tuple[int, Any]]:
        """A worker is lost, or a result of its. Which of several items is to blame is not known: of some that it had done Ray may have
        lost the word."""
        why, node = _first_line(error), member.info.node if member.info is not None else ""
        if isinstance(error, ray.exceptions.ObjectLostError):  # a result, or an argument that was in Ray's memory; the worker may go on
            item = self._take_off(member, reference)
            item.losses += 1
            yield from self._once_more(item, why, node)
            return
        items = list(member.doing.values())
        member.doing.clear()
        pool.lose(member, why)
        if len(items) == 1:
            items[0].tries += 1
            yield from self._once_more(items[0], why, node)
            return
        for item in items:
            item.suspect = True
        self.retried += len(items)
        self._again.extendleft(reversed(items))

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

    def _overdue(self, pool: Pool) -> Iterator[tuple[int, Any]]:
        """Workers that have had an item for too long are ended."""
        limit = self._plan.timeout
        if limit is None:
            return
        for member in pool.ready:
            if member.doing and time.monotonic() - member.since > limit:
                first, why = next(iter(member.doing)), f"it took longer than {limit:g} s (timeout)"
                if ray.wait([first], timeout=0)[0]:
                    continue  # it ended while the results before it were handed out
                yield from self._lost(pool, member, first, TimeoutError(why))

    # Handing out

    def _in_order(self, index: int, value: Any) -> Iterator[tuple[int, Any]]:
        if not self._plan.ordered:
            yield index, value
            return
        self._waiting[index] = value
        while self._next in self._waiting:
            self._next += 1
            yield self._next - 1, self._waiting.pop(self._next - 1)


def _has_room(member: Member, depth: int) -> bool:
    return len(member.doing) < depth and not any(item.suspect for item in member.doing.values())


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:1])}"[:300]
