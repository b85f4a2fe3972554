"""The statistics of the nodes' daemons, added up: what they did since the work began, by op and by node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .. import BadArgument
from .._companions import stats_table, texts

KEYS = ("op", "shapes", "dtype", "variant", "device", "node")
NODES_SHOWN = 8


@dataclass(frozen=True)
class Snapshot:
    """The rows of `stats()["ops"]` of one daemon, at a time of the worker's clock."""

    instance: str
    at: float
    ops: list[dict[str, Any]]


def _key(row: Mapping[str, Any]) -> str:
    return repr([row.get(name) for name in ("op", "uid", "device", "variant", "dtype", "shapes")])


def since(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of what a daemon did between two snapshots. Means are exact; the other figures of a distribution cannot be taken off, and
    are there where the row is new."""
    known = {_key(row): row for row in before}
    made: list[dict[str, Any]] = []
    for row in after:
        base = known.get(_key(row))
        if base is None or row.get("count", 0) < base.get("count", 0):  # new, or started anew by somebody's reset
            made.append(dict(row))
            continue
        one = {**row, "count": row.get("count", 0) - base.get("count", 0), "errors": row.get("errors", 0) - base.get("errors", 0)}
        for times in ("queue_us", "exec_us", "total_us"):
            one.pop(times, None)
            mean = _mean_since(base, row, times)
            if mean is not None:
                one[times] = {"mean": mean}
        if one["count"] or one["errors"]:
            made.append(one)
    return made


def _mean_since(before: Mapping[str, Any], after: Mapping[str, Any], times: str) -> float | None:
    then, now = before.get(times, {}).get("mean"), after.get(times, {}).get("mean")
    count = after.get("count", 0) - before.get("count", 0)
    if now is None or count <= 0:
        return None
    total = after["count"] * now - (before.get("count", 0) * then if then is not None else 0.0)
    return float(max(total, 0.0) / count)


class ClusterStats(dict[str, Any]):
    """The work of a cluster's daemons for a piece of work: a dictionary with `nodes` and `ops`. `print()` shows the table.

    `ops` are rows as those of `Stats`, with `node` beside them. `nodes` has for each daemon its `node`, its `items` (done by workers
    there), and `lost`: it went away, and what it did after its last word is not in the figures.
    A daemon counts for all its clients of the user: what others of them asked of it meanwhile is in the figures.
    """

    def table(self, sort_by: str = "total", group_by: str | Sequence[str] = (), limit: int | None = 20) -> str:
        """The timings as text, a line for each op, dtype and shapes; empty where there are none.

        `sort_by` is a column: op, shapes, dtype, calls, errors, total, share, mean, gb_s or gflop_s. `group_by`: which of op, shapes,
        dtype, variant, device and node make a line. Without "node" among them each node has a column with its milliseconds, as long as
        there are no more than 8. `limit` lines at most; None: all.
        """
        by = (group_by,) if isinstance(group_by, str) else tuple(group_by) or ("op", "shapes", "dtype")
        if wrong := [key for key in by if key not in KEYS]:
            raise BadArgument(f"group_by takes {', '.join(KEYS)}, not {wrong[0]!r}")
        lines = _lines(self["ops"], by)
        columns = ("calls", "errors", "total", "share", "mean", "gb_s", "gflop_s")
        if sort_by in by:
            lines.sort(key=lambda line: line.keys[sort_by])
        elif sort_by in columns:
            lines.sort(key=lambda line: -(line.numbers[sort_by] or 0.0))
        else:
            raise BadArgument(f"the table has no column {sort_by!r}: sort_by takes {', '.join((*by, *columns))}")
        if not lines:
            return ""
        names = sorted({row["node"] for row in self["ops"]})
        names = [] if "node" in by or len(names) > NODES_SHOWN else names
        head = [*by, *(stats_table.TITLES[name] for name in columns), *(f"{texts.text(name)} ms" for name in names)]
        shown = lines[:limit]
        cells = [
            [*(line.key_cell(key) for key in by), *map(line.cell, columns), *(texts.number(line.of(name)) for name in names)]
            for line in shown
        ]
        more = f"\nand {len(lines) - len(shown)} more" if len(lines) > len(shown) else ""
        return texts.layout([head, *cells], "l" * len(by) + "r" * (len(head) - len(by))) + more

    def __str__(self) -> str:
        told = [f"{one['node']}: {one['items']} items{', lost' if one['lost'] else ''}" for one in self["nodes"]]
        return f"{'; '.join(told)}\n{self.table()}".rstrip()


class _Line(stats_table.Line):
    def __init__(self, row: Mapping[str, Any]) -> None:
        super().__init__(row)
        self.keys["node"] = row["node"]

    def key_cell(self, key: str) -> str:
        return texts.text(self.keys[key]) if key == "node" else self.cell(key)

    def of(self, node: str) -> float | None:
        us = [us for row, _, us in self.timed if row["node"] == node]
        return sum(us) / 1e3 if us else None


def _lines(rows: Iterable[Mapping[str, Any]], by: Sequence[str]) -> list[_Line]:
    groups: dict[str, _Line] = {}
    for row in rows:
        line = _Line(row)
        groups.setdefault(repr([line.keys[key] for key in by]), line).rows.append(row)
    lines = list(groups.values())
    whole = sum(line.total_us for line in lines)
    for line in lines:
        line.finish(whole)
    return lines


class Gathered:
    """In the driver: the first and the last word of each daemon."""

    def __init__(self) -> None:
        self._first: dict[str, Snapshot] = {}
        self._last: dict[str, Snapshot] = {}
        self._nodes: dict[str, str] = {}
        self._items: dict[str, int] = {}
        self._lost: set[str] = set()

    def take(self, node: str, snapshot: Snapshot) -> None:
        """A word of a daemon. The first is what there was before the work."""
        one = snapshot.instance
        self._nodes.setdefault(one, node)
        self._first.setdefault(one, snapshot)
        if one not in self._last or self._last[one].at <= snapshot.at:
            self._last[one] = snapshot

    def begin(self) -> None:
        """New work begins: what the daemons have done until now does not count."""
        self._first = dict(self._last)
        self._items.clear()

    def count(self, instance: str) -> None:
        self._items[instance] = self._items.get(instance, 0) + 1

    def lose(self, instance: str) -> None:
        self._lost.add(instance)

    def stats(self) -> ClusterStats:
        rows = []
        for one, last in self._last.items():
            rows += [{**row, "node": self._nodes[one]} for row in since(self._first[one].ops, last.ops)]
        nodes = [
            {"node": self._nodes[one], "items": self._items.get(one, 0), "lost": one in self._lost} for one in self._last
        ]  # fmt: skip
        return ClusterStats(nodes=nodes, ops=rows)
