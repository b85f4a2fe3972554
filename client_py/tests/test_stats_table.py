"""The table of stats: tests/vectors/stats_table.json, which kopsctl runs, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kops
import pytest
from fake_daemon import FakeDaemon
from kops._base import stats as stats_table

FILE = Path(__file__).resolve().parents[2] / "tests/vectors/stats_table.json"
if not FILE.exists():
    pytest.skip("the vectors come with the source tree", allow_module_level=True)
VECTORS = json.loads(FILE.read_text(encoding="utf-8"))
ROWS = VECTORS["rows"]


@pytest.mark.parametrize("sort", stats_table.TITLES)
def test_order(sort: str) -> None:
    grid, _, more = stats_table.cells(ROWS, sort)
    assert grid == [VECTORS["titles"], *(VECTORS["lines"][i] for i in VECTORS["orders"][sort])] and not more


@pytest.mark.parametrize("case", VECTORS["tables"], ids=lambda case: case["why"][:40])
def test_table(case: dict[str, Any]) -> None:
    rows = [ROWS[i] for i in case["rows"]]
    grid, _, more = stats_table.cells(rows, case["sort"], case["by"], case["limit"])
    assert grid == [case["titles"], *case["cells"]] and more == case["more"]
    assert stats_table.cells(rows, case["sort"], [key for key in case["by"].split(",") if key], case["limit"])[0] == grid


def test_text() -> None:
    text = kops.Stats(ops=ROWS).table(group_by="dtype", sort_by="calls", limit=2)
    assert text.splitlines() == [
        "dtype  calls  errors  total ms  share %  mean us  p50 us  p99 us  GB/s  GFLOP/s  queue p99 us  total p99 us",
        "f32     1314       4      8.00     76.2     7.89       -       -  3.11        -             -             -",
        "f64      500       0      2.00     19.0     4.00    4.00   10.00  16.4     1.02             -          25.5",
        "and 1 more",
    ]


def test_ops() -> None:
    stats = kops.Stats(ops=ROWS)
    assert stats.table(ops="gemm") == kops.Stats(ops=[ROWS[1], ROWS[5]]).table()
    assert stats.table(ops=("scale", "gemm")) == kops.Stats(ops=[ROWS[1], ROWS[3], ROWS[5]]).table()
    assert stats.table(ops=()) == kops.Stats().table() == ""
    stats = kops.Stats(ops=[{**ROWS[0], "shapes": [[n]]} for n in range(25)])
    assert len(stats.table().splitlines()) == 22 and stats.table().endswith("\nand 5 more")
    assert len(stats.table(limit=None).splitlines()) == 26 and len(stats.table(limit=0).splitlines()) == 2


def test_long_and_strange_texts_fit_a_cell() -> None:
    grid, _, _ = stats_table.cells([{"op": "ü" * 60, "shapes": [[1000] * 8] * 16, "count": 1, "errors": 0}])
    assert grid[1][0] == "?" * 95 and len(grid[1][1]) == 95


def test_wrong_arguments() -> None:
    for asked, says in (
        ({"sort_by": "speed"}, "no column 'speed'"), ({"group_by": "calls"}, "not 'calls'"), ({"group_by": ("op", "")}, "not ''"),
        ({"group_by": "op", "sort_by": "device"}, "not possible with this group_by"), ({"limit": -1}, "not -1"),
    ):  # fmt: skip
        with pytest.raises(kops.BadArgument, match=says):
            kops.Stats(ops=ROWS).table(**asked)


def test_print(capsys: pytest.CaptureFixture[str]) -> None:
    stats = kops.Stats(uptime_s=61.4, counters={"requests": 7, "jobs": 6, "errors": 1, "connections": 2, "replies": 3}, ops=ROWS[:2])
    print(stats)
    assert capsys.readouterr().out == f"up 61 s, requests 7, jobs 6, errors 1, connections 2\n{stats.table()}\n"
    print(kops.Stats(uptime_s=0.2))
    assert capsys.readouterr().out == "up 0 s\n"


async def test_both_clients_answer_with_it(daemon: FakeDaemon, k: kops.Client) -> None:
    answer = {"uptime_s": 1.0, "counters": {}, "ops": ROWS, "mappings": []}
    daemon.script["stats"] = lambda *_: answer
    async with kops.connect_async(daemon.path) as client:
        for stats in (k.stats(), await client.stats()):
            assert stats == answer and json.loads(json.dumps(stats)) == answer
            assert stats.table() == kops.Stats(answer).table()
