"""Draws that are kept: thousands of solutions share a task, and its reference may be slow. Hidden, and exchanged little by little."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from concurrent.futures import Executor
from pathlib import Path
from statistics import median
from typing import NamedTuple

from ._draws import Draw, changed, draw, examine, new_seed
from ._task import Case, Task
from ._verdict import TaskFault

BYTES = 2 << 30, 16 << 30  # least and most bytes for all kept draws; in between a sixteenth of the machine's memory
REFRESH = 32  # uses of draws after which some are dropped
# Kept draws of one case: as many as timing a solution may need, if this fraction of the memory has room for them; draws
# to drop at a time.
VARIANTS, VARIANTS_PART, VARIANTS_GO = 144, 0.2, 4
LIMITS = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"  # files: a container's memory in bytes


class Drawn(NamedTuple):
    draws: tuple[Draw, ...]
    warnings: tuple[str, ...]
    variant: Draw  # the first draw with few elements exchanged


def _default_bytes() -> int:
    least, most = BYTES
    try:
        return max(least, min(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 16, most))
    except (ValueError, OSError):
        return least


def half_of_memory() -> int:
    """Bytes: half of what this process can get now, by the machine and by the limit of its container."""
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    for limit in LIMITS:
        with contextlib.suppress(OSError, ValueError):
            found.append(int(Path(limit).read_text(encoding="ascii")))
    return min(found) // 2 if found else _default_bytes()


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):,.1f} MiB"


class _Entry:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.draws: list[Draw] = []
        self.variants: list[Draw] = []
        self.variant: Draw | None = None
        self.warnings: tuple[str, ...] | None = None  # None: the task was not examined yet
        self.fault: TaskFault | None = None
        self.used = 0
        self.made = 0
        self.nbytes = 0

    def count(self) -> None:
        """Counts the entry's bytes anew, after a change."""
        variant = self.variant
        self.nbytes = sum(one.nbytes for one in (*self.draws, *self.variants, *([variant] if variant is not None else [])))

    def give_up_variants(self, nbytes: int) -> int:
        """As many as have so many bytes, where nobody changes them just now. The bytes that this frees."""
        if not self.variants or not self.lock.acquire(blocking=False):
            return 0
        try:
            before = self.nbytes
            del self.variants[: -(-nbytes // max(self.variants[0].nbytes, 1))]
            self.count()
            return before - self.nbytes
        finally:
            self.lock.release()


class Pool:
    """Thread-safe. A draw is made by the thread that asks for it; others that ask for the same task and case wait. `bound`: the bytes that
    draws of one solution may take."""

    def __init__(self, most: int | None = None, bound: int | None = None) -> None:
        self._bound = bound
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[object, Case, int | None], _Entry] = OrderedDict()
        self._most = _default_bytes() if most is None else most

    def take(self, task: Task, case: Case, count: int, seed: int | None = None, needed: int = 0, others: int = 0) -> Drawn:
        """So many different draws of a case. With a seed they are the same each time, and no secret. `needed`: how many its solutions need
        in all, besides draws of other cases with `others` bytes; no more than one is made where these are too many. Raises TaskFault."""
        with self._lock:
            key = (task.key, case, seed)
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
        with entry.lock:
            if entry.fault is not None:
                raise entry.fault
            try:
                self._first(entry, task, case, seed, needed, others)
                self._fill(entry, task, case, count, seed)
            except TaskFault as fault:
                entry.fault, entry.variant = fault, None
                entry.draws.clear()
                entry.variants.clear()
                raise
            finally:
                entry.count()
            assert entry.warnings is not None and entry.variant is not None
            drawn = Drawn(tuple(entry.draws[:count]), entry.warnings, entry.variant)
        self._evict()
        return drawn

    def variants(self, task: Task) -> tuple[Draw, ...]:
        """Draws of the timed case that were made to time other solutions. Never waits."""
        with self._lock:
            entry = self._entries.get((task.key, task.timed_case, None))
        return () if entry is None else tuple(entry.variants)

    def keep(self, task: Task, made: Draw) -> None:
        """A draw that a solution was timed with, for others, where there is room besides all else. Not for judges with a seed, whose draws
        are the same each time."""
        with self._lock:
            entry = self._entries.get((task.key, made.case, None))
            fits = made.nbytes + sum(one.nbytes for one in self._entries.values()) <= self._most
        if entry is None or not fits or not entry.lock.acquire(blocking=False):  # fails while a slow reference holds the lock
            return
        try:
            if len(entry.variants) < self._variants_most(made.nbytes):
                entry.variants.append(made)
                entry.nbytes += made.nbytes
        finally:
            entry.lock.release()

    def make_variants(self, task: Task, count: int, seconds: float, crew: Executor) -> None:
        """Makes `count` draws for `variants`, fewer where there is less room, and none where the missing ones take more than `seconds` of
        the reference. `crew` runs it. Where the reference fails, the judgement that needs such a draw reports it."""
        with self._lock:
            entry = self._entries.get((task.key, task.timed_case, None))
        if entry is None or not entry.draws:
            return
        with entry.lock, contextlib.suppress(TaskFault):
            one = max(entry.draws[-1].nbytes, 1)
            missing = min(count, self._variants_most(one)) - len(entry.variants)
            if missing <= 0 or missing * median(made.seconds for made in entry.draws) > seconds:
                return
            with self._lock:
                missing = min(missing, (self._most - sum(other.nbytes for other in self._entries.values())) // one)
                entry.nbytes += max(missing, 0) * one  # tell other threads that there is less room
            numbers = range(entry.made, entry.made + missing)
            entry.made += len(numbers)
            try:
                for made in crew.map(lambda number: draw(task, task.timed_case, new_seed(), number), numbers):
                    entry.variants.append(made)
            finally:
                entry.count()

    def _variants_most(self, nbytes: int) -> int:
        return min(VARIANTS, int(VARIANTS_PART * self._most) // max(nbytes, 1))

    def _first(self, entry: _Entry, task: Task, case: Case, seed: int | None, needed: int, others: int) -> None:
        """Makes the first draw, which tells how much memory draws take."""
        if not entry.draws:
            entry.draws.append(self._drawn(entry, task, case, seed))
        one = entry.draws[0].nbytes
        if self._bound is not None and needed and needed * one + others > self._bound:
            rest = f" besides {_mib(others)} of its other cases" if others else ""
            raise TaskFault(
                f"task {task.name}: a draw of the case {case} takes {_mib(one)} of memory, inputs and results in float64, and "
                f"{needed} are needed{rest}; the draws of a solution may take {_mib(self._bound)}: make the case smaller, or "
                "give the judge more draw_bytes"
            )

    def _fill(self, entry: _Entry, task: Task, case: Case, count: int, seed: int | None) -> None:
        entry.used += 1
        if seed is None and entry.warnings is not None and entry.used % REFRESH == 0:
            del entry.draws[0], entry.variants[:VARIANTS_GO]
            entry.variant = None
        while len(entry.draws) < max(count, 2):
            entry.draws.append(self._drawn(entry, task, case, seed))
            if len(entry.draws) == 2 and entry.warnings is None:
                entry.variant = self._changed(entry, task, seed)
                entry.warnings = examine(task, case, entry.draws[0], entry.draws[1], entry.variant)
        if entry.variant is None:
            entry.variant = self._changed(entry, task, seed)

    @staticmethod
    def _drawn(entry: _Entry, task: Task, case: Case, seed: int | None) -> Draw:
        number, entry.made = entry.made, entry.made + 1
        return draw(task, case, new_seed() if seed is None else seed + number, number)

    @staticmethod
    def _changed(entry: _Entry, task: Task, seed: int | None) -> Draw:
        number, entry.made = entry.made, entry.made + 1
        return changed(task, entry.draws[0], new_seed() if seed is None else seed + number, number)

    def _evict(self) -> None:
        """Entries that were not used for the longest time go first: their variants, which are soon made again, and then the entries;
        the last one stays."""
        with self._lock:
            total = sum(entry.nbytes for entry in self._entries.values())
            others = list(self._entries.items())[:-1]
            for _, entry in others:
                if total <= self._most:
                    return
                total -= entry.give_up_variants(total - self._most)
            for key, entry in others:
                if total <= self._most:
                    return
                if entry.fault is None:
                    total -= entry.nbytes
                    del self._entries[key]
