"""Draws that are kept: thousands of solutions share a task, and its reference may be slow. Hidden, and exchanged little by little."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from ._draws import Draw, Examined, changed, draw, examine, new_seed
from ._errors import TaskFault
from ._task import Case, Task

__all__ = ["Pool", "Drawn"]

BYTES_MAX = 2 << 30  # of all draws that are kept
REFRESH = 8  # solutions that see the same draws


class Drawn(NamedTuple):
    draws: tuple[Draw, ...]
    warnings: tuple[str, ...]
    variant: Draw  # the first one with few elements exchanged


class _Entry:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.draws: list[Draw] = []
        self.variant: Draw | None = None
        self.examined: Examined | None = None
        self.fault: TaskFault | None = None
        self.used = 0
        self.made = 0

    @property
    def nbytes(self) -> int:
        variant = self.variant
        return sum(one.nbytes for one in list(self.draws)) + (variant.nbytes if variant is not None else 0)


class Pool:
    """Thread-safe. A draw is made by the thread that asks for it; others that ask for the same task and case wait."""

    def __init__(self, most: int = BYTES_MAX) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[tuple[object, Case, int | None], _Entry] = OrderedDict()
        self._most = most

    def take(self, task: Task, case: Case, count: int, seed: int | None = None) -> Drawn:
        """So many different draws of a case. With a seed they are the same each time, and no secret. Raises TaskFault."""
        with self._lock:
            key = (task.key, case, seed)
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
        with entry.lock:
            if entry.fault is not None:
                raise entry.fault
            try:
                self._fill(entry, task, case, count, seed)
            except TaskFault as fault:
                entry.fault = fault
                raise
            assert entry.examined is not None and entry.variant is not None
            drawn = Drawn(tuple(entry.draws[:count]), entry.examined.warnings, entry.variant)
        self._evict()
        return drawn

    def _fill(self, entry: _Entry, task: Task, case: Case, count: int, seed: int | None) -> None:
        entry.used += 1
        if seed is None and entry.examined is not None and entry.used % REFRESH == 0:
            del entry.draws[0]
            entry.variant = None
        while len(entry.draws) < max(count, 2):
            number = entry.made
            entry.draws.append(draw(task, case, new_seed() if seed is None else seed + number, number))
            entry.made += 1
            if len(entry.draws) == 2 and entry.examined is None:
                entry.examined = examine(task, case, *entry.draws)
        if entry.variant is None:
            entry.variant = changed(task, entry.draws[0], new_seed() if seed is None else seed + entry.made, entry.made)
            entry.made += 1

    def _evict(self) -> None:
        """The entries that were not used for the longest time go; the last one stays."""
        with self._lock:
            sizes = {key: entry.nbytes for key, entry in self._entries.items()}
            total = sum(sizes.values())
            for key in list(self._entries)[:-1]:
                if total <= self._most:
                    return
                if self._entries[key].fault is None:
                    total -= sizes[key]
                    del self._entries[key]
