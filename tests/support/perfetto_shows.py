"""Perfetto shows all of a trace, as it was made: what its trace processor has of the file is held against the file."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import chrome_trace, perfetto

Row = tuple[int, int]  # pid, tid

SHOWN = """
create view shown as
select slice.id, pid, tid, ts, dur, category, slice.name, slice.parent_id
from slice join thread_track on track_id = thread_track.id join thread using (utid) join process using (upid)
"""
KEY = "{0}.pid, {0}.tid, {0}.ts, {0}.dur, {0}.category, {0}.name"
SLICES = f"select {KEY.format('own')}, {KEY.format('parent')} from shown own left join shown parent on own.parent_id = parent.id"
FLOWS = f"""
select {KEY.format('source')}, {KEY.format('sink')}
from flow left join shown source on slice_out = source.id left join shown sink on slice_in = sink.id
"""
ROWS = "select pid, tid, process.name, thread.name from thread join process using (upid) where utid in (select utid from thread_track)"
LOSSES = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


@dataclass
class Slice:
    key: tuple[Any, ...]  # pid, tid, begin and length in ns, category, name
    around: Slice | None

    @property
    def begin(self) -> int:
        begin: int = self.key[2]
        return begin

    @property
    def end(self) -> int:
        end: int = self.begin + self.key[3]
        return end


NOTHING = (None,) * 6


class Made:
    """The slices and arrows of a file that chrome_trace has nothing against."""

    def __init__(self, events: Iterable[dict[str, Any]]) -> None:
        self.slices: dict[Row, list[Slice]] = defaultdict(list)
        self.arrows: dict[int, list[tuple[Row, int]]] = defaultdict(list)
        self.names: dict[tuple[int, ...], str] = {}
        for event in events:
            if event["ph"] == "M" and event["name"] in ("process_name", "thread_name"):
                self.names[(event["pid"], event["tid"]) if "tid" in event else (event["pid"],)] = event["args"]["name"]
            elif event["ph"] == "X":
                times = chrome_trace.ns(event["ts"]), chrome_trace.ns(event["dur"])
                key = (event["pid"], event["tid"], *times, event["cat"], event["name"])
                self.slices[key[:2]].append(Slice(key, None))
            elif event["ph"] in "stf":
                self.arrows[event["id"]].append(((event["pid"], event["tid"]), chrome_trace.ns(event["ts"])))
        for row in self.slices.values():
            row.sort(key=lambda slice_: slice_.begin)
            self._nest(row)

    @staticmethod
    def _nest(row: Iterable[Slice]) -> None:
        last: Slice | None = None
        for slice_ in row:
            while last is not None and last.end <= slice_.begin:
                last = last.around
            slice_.around, last = last, slice_

    def _innermost(self, row: Row, at: int) -> tuple[Any, ...]:
        slices = self.slices[row]
        found: Slice | None = slices[bisect_right(slices, at, key=lambda slice_: slice_.begin) - 1]
        while found is not None and found.end <= at and found.begin < at:
            found = found.around
        assert found is not None, f"an arrow that touches nothing, {row} at {at} ns"
        return found.key

    def nested(self) -> Iterable[tuple[Any, ...]]:
        for row in self.slices.values():
            for slice_ in row:
                yield (*slice_.key, *(slice_.around.key if slice_.around else NOTHING))

    def flows(self) -> Iterable[tuple[Any, ...]]:
        for steps in self.arrows.values():
            for source, sink in zip(steps, steps[1:], strict=False):
                yield (*self._innermost(*source), *self._innermost(*sink))

    def rows(self) -> Iterable[tuple[Any, ...]]:
        for pid, tid in self.slices:
            yield pid, tid, self.names[pid,], self.names[pid, tid]


@dataclass
class Shown:
    """How much Perfetto has of a trace, and how many errors and losses its import had."""

    slices: int
    flows: int
    rows: int
    losses: int


def _same(what: str, shown: Iterable[tuple[Any, ...]], made: Iterable[tuple[Any, ...]]) -> int:
    have, want = Counter(shown), Counter(made)
    assert have == want, f"{what}: Perfetto lacks {list(want - have)[:3]}, and has {list(have - want)[:3]}"
    return sum(have.values())


def check(path: Path, events: Iterable[dict[str, Any]]) -> Shown:
    """AssertionError: Perfetto lost, or shows elsewhere, something of the file, which has these events."""
    with perfetto.TraceProcessor(path) as processor:
        losses = processor.query(LOSSES)
        assert not losses, losses
        made = Made(events)
        processor.query(SHOWN)
        slices = _same("slices", processor.query(SLICES), made.nested())
        assert slices == processor.value("select count(*) from slice"), "slices of no thread"
        flows = _same("flows", processor.query(FLOWS), made.flows())
        return Shown(slices, flows, _same("rows", processor.query(ROWS), made.rows()), len(losses))
