"""Sums of a profile: a row for each op, as `key_averages()` of torch's profiler has it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import BadArgument
from .._companions import intervals, texts
from ._recorder import Event
from ._spans import Span

GROUPS = ("op", "dtype", "shapes", "variant", "device", "client", "stack")
TORCH = {  # torch's sort keys, and the columns they mean
    **{f"{self}{device}_time_total": "total" for self in ("", "self_") for device in ("cuda", "device")},
    **{f"{device}_time": "mean" for device in ("cuda", "device")},
    "self_cpu_time_total": "cpu_time_total",
}
NOT_MEASURED = ("memory_usage", "flops", "xpu_time")


@dataclass
class Average:
    """Requests of one kind. `count` requests with `executions` executions; device times in microseconds of one execution, None
    where the device did none; `share` of the time of all rows."""

    key: tuple[str, ...]
    count: int = 0
    executions: int = 0
    total: float = 0.0
    queue: float = 0.0  # the mean from `ready` to `started`
    latency: float = 0.0  # the mean from `received` to `ended`
    send: float | None = None  # for calls that waited: mean from the call's begin to `received`
    reply: float | None = None  # for calls that waited: mean from `ended` to the call's end
    cpu_time_total: float = 0.0  # time of the calls that made these requests, in this process
    share: float = 0.0
    failed: int = 0
    _each: list[float] = field(default_factory=list, repr=False)
    _ways: list[tuple[float, float]] = field(default_factory=list, repr=False)

    def __getattr__(self, name: str) -> Any:
        if name in TORCH:
            return getattr(self, TORCH[name])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def cpu_time(self) -> float:
        return self.cpu_time_total / self.count if self.count else 0.0

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self._each) if self._each else None

    def percentile(self, p: float) -> float | None:
        if not self._each:
            return None
        return intervals.percentile(sorted(self._each), p)

    @property
    def p50(self) -> float | None:
        return self.percentile(0.5)

    @property
    def p99(self) -> float | None:
        return self.percentile(0.99)


class Averages(list[Average]):
    """Rows, and the table of them."""

    def __init__(self, rows: Iterable[Average], groups: Sequence[str]) -> None:
        super().__init__(rows)
        self.groups = tuple(groups)

    def __str__(self) -> str:
        return self.table()

    def table(
        self, sort_by: str | None = "total", row_limit: int = 100, max_src_column_width: int = 75, max_name_column_width: int = 55,
        max_shapes_column_width: int = 80, header: str | None = None, top_level_events_only: bool = False,
    ) -> str:  # fmt: skip
        """The rows as text, the largest first by `sort_by`: "count", "executions", "total", "mean", "p50", "p99", "queue",
        "latency", "send", "reply", "cpu_time_total" or "cpu_time"; "cuda_time_total" and torch's other names of these. By a group's
        name: in the order of the alphabet. None: as they are. `row_limit` -1: all. All of them are top-level."""
        rows = self._sorted(sort_by)
        most = len(rows) if row_limit < 0 else row_limit
        times = ("mean", "p50", "p99", "queue", "latency", "send", "reply")
        head = [*self.groups, "calls", "executions", "total ms", "share %", *(f"{time} us" for time in times), "cpu us"]
        rest = f"\n... and {len(rows) - most} more" if len(rows) > most else ""
        align = "l" * len(self.groups) + "r" * (len(head) - len(self.groups))
        widths = {"op": max_name_column_width, "stack": max_src_column_width, "shapes": max_shapes_column_width}

        def keys(row: Average) -> list[str]:
            return [_cut(value, widths.get(group)) for group, value in zip(self.groups, row.key, strict=True)]

        made = texts.layout([head, *([*keys(row), *_cells(row)] for row in rows[:most])], align) + rest
        return f"{header}\n{made}" if header else made

    def _sorted(self, sort_by: str | None) -> list[Average]:
        columns = ("count", "executions", "total", "mean", "p50", "p99", "queue", "latency", "send", "reply", "cpu_time_total", "cpu_time")
        if sort_by is None:
            return list(self)
        if sort_by in self.groups:
            at = self.groups.index(sort_by)
            return sorted(self, key=lambda row: row.key[at])
        if sort_by in columns or sort_by in TORCH:
            return sorted(self, key=lambda row: -(getattr(row, sort_by) or 0))
        why = " is not measured" if any(name in str(sort_by) for name in NOT_MEASURED) else ""
        raise BadArgument(f"sort_by={sort_by!r}{why}: one of {', '.join((*columns, *TORCH, *self.groups))}")


def _cut(value: str, most: int | None) -> str:
    return value if most is None or len(value) <= max(most, 3) else f"{value[: max(most, 3) - 3]}..."


def _cells(row: Average) -> list[str]:
    times = (row.mean, row.p50, row.p99, row.queue, row.latency, row.send, row.reply, row.cpu_time or None)
    return [str(row.count), str(row.executions), texts.number(row.total / 1e3), f"{100 * row.share:.1f}", *map(texts.number, times)]


def _key(event: Event, group: str) -> str:
    if group == "op":
        return texts.text(event.label if event.what == "compile" or event.ops > 1 else event.op)
    if group == "shapes":
        return texts.shapes(event.shapes)
    if group == "client":
        return texts.text(f"{event.client or event.comm} ({event.pid})")
    return texts.text(getattr(event, group))


def averages(events: Iterable[Event], groups: Sequence[str], callers: Mapping[int, Span], lines: int = 1) -> Averages:
    """The events by these groups; `callers` as match() makes it, by `lines` of their stacks. A percentile is over
    requests: of each the mean of its executions."""
    wrong = [group for group in groups if group not in GROUPS]
    if wrong or not groups:
        raise BadArgument(f"group_by={tuple(groups)!r}: some of {', '.join(GROUPS)}")
    rows: dict[tuple[str, ...], Average] = {}
    for event in events:
        caller = callers.get(id(event))
        stack = texts.text("; ".join(caller.stack[:lines])) if caller is not None else texts.NONE
        key = tuple(stack if group == "stack" else _key(event, group) for group in groups)
        row = rows.setdefault(key, Average(key))
        row.count += 1
        row.executions += event.executions
        row.failed += event.failed
        row.latency += (event.ended - event.received) / 1e3
        if event.ready is not None and event.started is not None:
            row.queue += (event.started - event.ready) / 1e3
        if caller is not None:
            row.cpu_time_total += (caller.end - caller.begin) / 1e3
        if caller is not None and event.ended <= caller.end:
            row._ways.append(((event.received - caller.begin) / 1e3, (caller.end - event.ended) / 1e3))
        if event.device_us is not None and event.what != "compile":
            row.total += event.device_us
            row._each.append(event.device_us / event.executions)
    whole = sum(row.total for row in rows.values())
    for row in rows.values():
        row.queue /= row.count
        row.latency /= row.count
        if row._ways:
            row.send, row.reply = (statistics.fmean(way) for way in zip(*row._ways, strict=True))
        row.share = row.total / whole if whole else 0.0
    return Averages(sorted(rows.values(), key=lambda row: -row.total), groups)
