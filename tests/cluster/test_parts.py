"""The parts of `kops.ray` that need no cluster: statistics added up, the progress line."""

from __future__ import annotations

import io
import sys
from typing import Any

import kops
import kops.ray
import pytest
from kops.ray import _items
from kops.ray._stats import Gathered, Snapshot, since


def row(op: str, count: int, mean: float, **more: Any) -> dict[str, Any]:
    return {
        "op": op, "uid": 0, "device": "host", "variant": "simd", "dtype": "f32", "shapes": [[4]], "count": count, "errors": 0,
        "bytes": 1000, "exec_us": {"mean": mean, "p50": mean, "p99": 2 * mean}, **more,
    }  # fmt: skip


def test_what_was_done_since() -> None:
    before = [row("add", 10, 2.0), row("gone", 1, 1.0)]
    after = [row("add", 30, 4.0), row("square", 5, 1.0), row("gone", 1, 1.0)]
    made = {one["op"]: one for one in since(before, after)}
    assert set(made) == {"add", "square"}, "what did nothing is left out"
    assert made["add"]["count"] == 20 and made["add"]["exec_us"] == {"mean": 5.0}, "(30 · 4 − 10 · 2) / 20"
    assert made["square"]["exec_us"]["p99"] == 2.0
    assert since([row("add", 10, 2.0)], [row("add", 3, 1.0)])[0]["count"] == 3, "somebody reset the statistics"
    failed = since([row("add", 10, 2.0)], [row("add", 10, 2.0, errors=2)])
    assert failed[0]["errors"] == 2 and "exec_us" not in failed[0]


def gathered() -> Gathered:
    made = Gathered()
    made.take("a", Snapshot("1", 1.0, [row("add", 10, 2.0)]))
    made.begin()
    made.take("a", Snapshot("1", 5.0, [row("add", 20, 2.0)]))
    made.take("a", Snapshot("1", 4.0, [row("add", 15, 2.0)]))  # an older word that comes later
    made.take("b", Snapshot("2", 9.0, []))
    made.take("b", Snapshot("2", 10.0, [row("add", 30, 4.0), row("square", 1, 1000.0)]))
    for instance in "1", "2", "2":
        made.count(instance)
    made.lose("2")
    return made


def test_statistics_of_nodes_are_added_up() -> None:
    stats = gathered().stats()
    assert stats["nodes"] == [{"node": "a", "items": 1, "lost": False}, {"node": "b", "items": 2, "lost": True}]
    lines = [line.split() for line in stats.table().splitlines()]
    assert lines[0][-4:] == ["a", "ms", "b", "ms"]
    assert lines[1] == ["square", "4", "f32", "1", "0", "1.00", "87.7", "1000", "0.00", "-", "-", "1.00"]
    assert lines[2] == ["add", "4", "f32", "40", "0", "0.14", "12.3", "3.50", "0.29", "-", "0.02", "0.12"]
    by_node = stats.table(sort_by="node", group_by="node").splitlines()
    assert by_node[0].startswith("node  calls") and [line.split()[:2] for line in by_node[1:]] == [["a", "10"], ["b", "31"]]
    assert stats.table(limit=1).endswith("and 1 more")
    assert "b: 2 items, lost" in str(stats)
    for wrong in ({"sort_by": "p99"}, {"group_by": "user"}):
        with pytest.raises(kops.BadArgument):
            stats.table(**wrong)
    assert kops.ray.ClusterStats(nodes=[], ops=[]).table() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_without_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(_items, "EVERY_S", 0.0)
    progress = _items.Progress("gemm", 3, None)
    progress.step(2, 0)
    progress.step(2, 1)
    progress.close(2)
    lines = sys.stderr.getvalue().split("\x1b[K\r")  # type: ignore[attr-defined]
    assert lines[0].startswith("gemm: 1/3, ") and lines[1].endswith("workers 2, again 1") and lines[-1] == "\n"
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    quiet = _items.Progress("gemm", 3, None)
    quiet.step(1, 0)
    quiet.close(1)
    assert sys.stderr.getvalue() == "", "no terminal, no line"
    asked = _items.Progress("gemm", None, True)
    asked.step(1, 0)
    asked.close(1)
    assert sys.stderr.getvalue().startswith("gemm: 1, ") and sys.stderr.getvalue().count("\n") == 1
