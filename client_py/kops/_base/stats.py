"""The answer of `stats()`: dictionaries, the outermost one with a table. A daemon of another version may leave keys out or
add some. A key of this version is left out only for a time that was not measured, as `operations` of a user kernel, as
`device` of the host's memory, and of an executor that serves nobody.

The table's columns, order and groups are by the rules of docs/stats.md; kopsctl has them in daemon/ctl/commands/stats.c, and
tests/vectors/stats_table.json holds both to them.
"""

from __future__ import annotations

import contextlib
import pwd
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from . import texts
from .errors import BadArgument
from .records import ExecutorStats, MappingStats, OpStats

Row = Mapping[str, Any]  # a row of `stats.ops`; a daemon of another version may leave keys out

TITLES = {
    "op": "op",
    "shapes": "shapes",
    "dtype": "dtype",
    "variant": "variant",
    "device": "device",
    "user": "user",
    "calls": "calls",
    "errors": "errors",
    "total": "total ms",
    "share": "share %",
    "mean": "mean us",
    "p50": "p50 us",
    "p99": "p99 us",
    "gb_s": "GB/s",
    "gflop_s": "GFLOP/s",
    "queue_p99": "queue p99 us",
    "total_p99": "total p99 us",
}


def _user(of: tuple[int, str]) -> str:
    uid, identity = of
    if identity:
        return texts.text(f"[{identity}]")
    with contextlib.suppress(KeyError, OverflowError):
        return texts.text(pwd.getpwuid(uid).pw_name)
    return str(uid) if uid >= 0 else texts.NONE


# For each key: the value that rows are grouped and sorted by, and its cell.
KEYS: dict[str, tuple[Callable[[Row], Any], Callable[[Any], str]]] = {
    "op": (lambda row: row.get("op", ""), texts.text),
    "shapes": (lambda row: [list(shape) for shape in row.get("shapes", ())], texts.shapes),
    "dtype": (lambda row: row.get("dtype", ""), texts.text),
    "variant": (lambda row: row.get("variant", ""), texts.text),
    "device": (lambda row: row.get("device", ""), lambda uuid: texts.text(uuid[:12])),
    "user": (lambda row: (row.get("uid", -1), row.get("identity", "")), _user),
}
COUNTS = ("calls", "errors")


class Line:
    """A line of the table: one row, or a group of rows."""

    def __init__(self, row: Row) -> None:
        self.keys = {name: value(row) for name, (value, _) in KEYS.items()}
        self.rows: list[Row] = []
        self.numbers: dict[str, float | None] = {}

    @property
    def timed(self) -> list[tuple[Row, int, float]]:
        """The rows with a measured execution, with their executions and the time of all these."""
        means = [(row, row.get("count", 0), row.get("exec_us", {}).get("mean")) for row in self.rows]
        return [(row, count, count * mean) for row, count, mean in means if mean is not None]

    @property
    def total_us(self) -> float:
        return sum(us for _, _, us in self.timed)

    def _percentile(self, times: str, name: str) -> float | None:
        return self.rows[0].get(times, {}).get(name) if len(self.rows) == 1 else None

    def _per_ns(self, key: str) -> float | None:
        """`key` of every timed execution by their time; nothing where a row does not have it."""
        amounts = [count * row[key] if key in row else None for row, count, _ in self.timed]
        known = [amount for amount in amounts if amount is not None]
        return sum(known) / self.total_us / 1e3 if self.total_us > 0 and len(known) == len(amounts) else None

    def finish(self, all_us: float) -> None:
        """`all_us`: the total of every line."""
        timed_calls = sum(count for _, count, _ in self.timed)
        total_us = self.total_us if timed_calls else None
        self.numbers = {
            "calls": sum(row.get("count", 0) for row in self.rows),
            "errors": sum(row.get("errors", 0) for row in self.rows),
            "total": None if total_us is None else total_us / 1e3,
            "share": None if total_us is None or not all_us else 100 * (total_us / all_us),
            "mean": None if total_us is None else total_us / timed_calls,
            "p50": self._percentile("exec_us", "p50"),
            "p99": self._percentile("exec_us", "p99"),
            "gb_s": self._per_ns("bytes"),
            "gflop_s": self._per_ns("operations"),
            "queue_p99": self._percentile("queue_us", "p99"),
            "total_p99": self._percentile("total_us", "p99"),
        }

    def cell(self, column: str) -> str:
        if column in KEYS:
            return KEYS[column][1](self.keys[column])
        value = self.numbers[column]
        if column in COUNTS:
            return str(value)
        return f"{value:.1f}" if column == "share" and value is not None else texts.number(value)


def _lines(rows: Sequence[Row], by: Sequence[str]) -> list[Line]:
    """In the daemon's order of their first rows."""
    lines: list[Line] = []
    groups: dict[str, Line] = {}
    for row in rows:
        line = Line(row)
        if by:
            line = groups.setdefault(repr([line.keys[key] for key in by]), line)
        if not line.rows:
            lines.append(line)
        line.rows.append(row)
    all_us = sum(line.total_us for line in lines)
    for line in lines:
        line.finish(all_us)
    return lines


def _order(column: str) -> Callable[[Line], Any]:
    if column in KEYS:
        return lambda line: line.keys[column]

    def descending(line: Line) -> tuple[bool, float]:
        value = line.numbers[column]
        return value is None, 0 if value is None else -value

    return descending


def _group_by(given: str | Sequence[str], sort_by: str) -> tuple[str, ...]:
    by = tuple(given.split(",")) if isinstance(given, str) and given else tuple(given)
    if wrong := [key for key in by if key not in KEYS]:
        raise BadArgument(f"group_by takes {', '.join(KEYS)}, not {wrong[0]!r}")
    if sort_by not in TITLES:
        raise BadArgument(f"the table has no column {sort_by!r}: sort_by takes {', '.join(TITLES)}")
    if by and sort_by in KEYS and sort_by not in by:
        raise BadArgument(f"sort_by={sort_by!r} is not possible with this group_by: the groups have no such column")
    return by


def cells(
    rows: Sequence[Row], sort_by: str = "total", group_by: str | Sequence[str] = (), limit: int | None = None
) -> tuple[list[list[str]], str, int]:
    """The titles and the lines, the columns' alignments, and how many lines `limit` left out."""
    by = _group_by(group_by, sort_by)
    if limit is not None and limit < 0:
        raise BadArgument(f"limit is a number of lines, not {limit}")
    lines = sorted(_lines(rows, by), key=_order(sort_by))
    several_users = len({line.keys["user"] for line in lines}) > 1
    keys = [key for key in KEYS if key in by] if by else [key for key in KEYS if key != "user" or several_users]
    columns = [*keys, *(name for name in TITLES if name not in KEYS)]
    shown = lines[:limit]
    grid = [[TITLES[name] for name in columns], *([line.cell(name) for name in columns] for line in shown)]
    return grid, "".join("l" if name in KEYS else "r" for name in columns), len(lines) - len(shown)


def text(rows: Sequence[Row], sort_by: str, group_by: str | Sequence[str], limit: int | None) -> str:
    """The table; nothing where there are no rows."""
    grid, align, more = cells(rows, sort_by, group_by, limit)
    if not rows:
        return ""
    return texts.layout(grid, align) + (f"\nand {more} more" if more else "")


class Stats(dict[str, Any]):
    """Counters and timings of a daemon since its start or the last reset: a dictionary. `print()` shows the timings as a
    table, `table()` makes other tables of them."""

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, key: Literal["uptime_s"]) -> float: ...
        @overload
        def __getitem__(self, key: Literal["counters", "kernels", "executor_counts"]) -> dict[str, int]: ...
        @overload
        def __getitem__(self, key: Literal["ops"]) -> list[OpStats]: ...
        @overload
        def __getitem__(self, key: Literal["mappings"]) -> list[MappingStats]: ...
        @overload
        def __getitem__(self, key: Literal["mappings_all"]) -> int: ...
        @overload
        def __getitem__(self, key: Literal["executors"]) -> list[ExecutorStats]: ...
        @overload
        def __getitem__(self, key: str) -> Any: ...
        def __getitem__(self, key: str) -> Any: ...

    def table(
        self,
        sort_by: str = "total",
        group_by: str | Sequence[str] = (),
        limit: int | None = 20,
        ops: str | Iterable[str] | None = None,
    ) -> str:
        """The timings as text, as `kopsctl stats` prints them; empty where there are none.

        `sort_by` is a column: op, shapes, dtype, variant, device, user, calls, errors, total, share, mean, p50, p99, gb_s,
        gflop_s, queue_p99 or total_p99. `group_by` makes one line of the rows that agree in the named ones of the first six.
        `limit` lines at most; None: all. `ops` are the names of the ops to show; None: all.
        """
        rows = self.get("ops", [])
        if ops is not None:
            names = {ops} if isinstance(ops, str) else set(ops)
            rows = [row for row in rows if row.get("op") in names]
        return text(rows, sort_by, group_by, limit)

    def __str__(self) -> str:
        counters = self.get("counters", {})
        counts = [f"{name} {counters[name]}" for name in ("requests", "jobs", "errors", "connections") if name in counters]
        head = ", ".join([f"up {self.get('uptime_s', 0):.0f} s", *counts])
        return f"{head}\n{self.table()}".rstrip()
