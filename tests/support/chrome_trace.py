"""What a trace in Chrome's format must be for a viewer to show all of it, as strict as the format's readers may be.

Chrome's "Trace Event Format": slices with their ends (X), arrows (s, t, f) and names of rows (M). Readers drop, without a word,
slices of a row that overlap without nesting, and arrows of which an end is in no slice. Of slices that begin at one time the outer one
is first in the file, and where one has no length it is the only one: Perfetto has the next one inside it.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = tuple[int, int]  # pid, tid
NAMES = {"process_name": "name", "thread_name": "name", "process_sort_index": "sort_index", "thread_sort_index": "sort_index"}
KEYS = {
    "M": {"ph", "pid", "name", "args"},
    "X": {"ph", "pid", "tid", "ts", "dur", "cat", "name"},
    "s": {"ph", "pid", "tid", "ts", "id", "cat", "name"},
    "t": {"ph", "pid", "tid", "ts", "id", "cat", "name"},
    "f": {"ph", "pid", "tid", "ts", "id", "cat", "name", "bp"},
}
ARROWS = (["s", "f"], ["s", "t", "f"])


def load(path: Path) -> dict[str, Any]:
    """The trace of a file. ValueError: it is not JSON to the letter, which has no NaN and no key twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise ValueError(f"a key is there twice: {[key for key, _ in pairs]}")
        return made

    def number(name: str) -> float:
        raise ValueError(f"JSON has no {name}")

    with path.open(encoding="utf-8", errors="strict") as file:
        made: dict[str, Any] = json.load(file, object_pairs_hook=once, parse_constant=number)
        return made


def ns(us: float) -> int:
    return round(us * 1000)


class Trace:
    """Takes events one by one, then `check`."""

    def __init__(self) -> None:
        self.slices: dict[Row, list[tuple[int, int]]] = defaultdict(list)  # begin, end
        self.named: dict[str, set[Any]] = defaultdict(set)
        self.arrows: dict[Any, list[tuple[str, Row, int]]] = defaultdict(list)
        self.categories: Counter[str] = Counter()  # of slices

    def add(self, event: dict[str, Any]) -> None:
        phase = event["ph"]
        assert phase in KEYS, f"a phase that the project does not write: {event}"
        assert KEYS[phase] <= event.keys(), event
        for key in event.keys() & {"pid", "tid", "id"}:
            assert type(event[key]) is int and 0 <= event[key] < 1 << 32, event
        assert isinstance(event["name"], str) and isinstance(event.get("args", {}), dict), event
        if phase == "M":
            self._add_name(event)
            return
        assert event["cat"] and isinstance(event["cat"], str), event
        for key in event.keys() & {"ts", "dur"}:
            assert type(event[key]) in (int, float) and math.isfinite(event[key]) and event[key] >= 0, event
        row, at = (event["pid"], event["tid"]), ns(event["ts"])
        if phase == "X":
            self.slices[row].append((at, at + ns(event["dur"])))
            self.categories[event["cat"]] += 1
        else:
            assert phase != "f" or event["bp"] == "e", "the arrow ends in the slice around it, not in the next one"
            self.arrows[event["cat"], event["name"], event["id"]].append((phase, row, at))

    def _add_name(self, event: dict[str, Any]) -> None:
        what, value = event["name"], event["args"][NAMES[event["name"]]]
        assert isinstance(value, str if what.endswith("_name") else int), event
        place = (event["pid"], event["tid"]) if what.startswith("thread") else event["pid"]
        assert place not in self.named[what], f"told twice: {event}"
        self.named[what].add(place)

    def check(self) -> None:
        for row, slices in self.slices.items():
            assert row in self.named["thread_name"] and row[0] in self.named["process_name"], f"no name: {row}"
            slices.sort(key=lambda slice_: slice_[0])  # those that begin together stay in the file's order
            self._check_nesting(row, slices)
        for arrow, steps in self.arrows.items():
            assert [phase for phase, _, _ in steps] in ARROWS, (arrow, steps)
            times = [at for _, _, at in steps]
            assert times == sorted(times), f"it goes back in time: {arrow}, {steps}"
            for _, row, at in steps:
                assert self._is_in_a_slice(row, at), f"it touches nothing: {arrow}, {steps}"

    def _check_nesting(self, row: Row, slices: list[tuple[int, int]]) -> None:
        open_: list[tuple[int, int]] = []
        for begin, end in slices:
            while open_ and open_[-1][1] <= begin and open_[-1] != (begin, begin):
                open_.pop()
            assert not open_ or open_[-1] != (begin, begin), f"a slice of {row} without a length, and another one at {begin} ns"
            assert not open_ or end <= open_[-1][1], f"slices of {row} overlap at {begin} ns without nesting"
            open_.append((begin, end))

    def _is_in_a_slice(self, row: Row, at: int) -> bool:
        """Slices nest, so that one which is open at that time is around, or is, the last one that began."""
        slices = self.slices.get(row, [])
        last = bisect_right(slices, at, key=lambda slice_: slice_[0])
        return any(end > at or begin == at for begin, end in reversed(slices[max(0, last - NEAR) : last]))


NEAR = 1000  # slices that are looked at for one around a time


def check(events: Iterable[dict[str, Any]]) -> Trace:
    """AssertionError: a viewer would not show all of it."""
    trace = Trace()
    for event in events:
        trace.add(event)
    trace.check()
    return trace
