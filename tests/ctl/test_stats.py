"""The table of kopsctl stats: tests/vectors/stats_table.json, which the Python client runs, too; and both print the same."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Ctl
from fake import FakeDaemon, stats
from support import daemon as support

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client_py"))

from kops import Stats  # noqa: E402

VECTORS = json.loads((ROOT / "tests/vectors/stats_table.json").read_text(encoding="utf-8"))


def table(text: str, title: str) -> list[str]:
    """Its lines; a blank line ends them."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.split("  ")[0] == title)
    return [*lines[start:], ""][: [*lines[start:], ""].index("")]


def ask(ctl: Ctl, sort: str = "", by: str = "", limit: int | None = None) -> str:
    options = [("--sort", sort), ("--by", by), ("--limit", "" if limit is None else str(limit))]
    return ctl("stats", *(word for option, value in options if value for word in (option, value))).stdout


def split(lines: list[str]) -> list[list[str]]:
    return [re.split(" {2,}", line.strip()) for line in lines]


@pytest.mark.parametrize("sort", VECTORS["orders"])
def test_order(fake: FakeDaemon, ctl: Ctl, sort: str) -> None:
    fake.answers["stats"] = stats(rows=VECTORS["rows"])
    lines = table(ask(ctl, sort), "op")
    assert split(lines) == [VECTORS["titles"], *(VECTORS["lines"][i] for i in VECTORS["orders"][sort])]
    assert "\n".join(lines) == Stats(fake.answers["stats"]).table(sort_by=sort)


@pytest.mark.parametrize("case", VECTORS["tables"], ids=lambda case: case["why"][:40])
def test_table(fake: FakeDaemon, ctl: Ctl, case: dict[str, Any]) -> None:
    fake.answers["stats"] = stats(rows=[VECTORS["rows"][i] for i in case["rows"]])
    lines = table(ask(ctl, case["sort"], case["by"], case["limit"]), case["titles"][0])
    assert split(lines) == [case["titles"], *case["cells"], *([[f"and {case['more']} more"]] if case["more"] else [])]
    python = Stats(fake.answers["stats"]).table(sort_by=case["sort"], group_by=case["by"], limit=case["limit"])
    assert "\n".join(lines) == python


def test_total_is_the_default(fake: FakeDaemon, ctl: Ctl) -> None:
    fake.answers["stats"] = stats(rows=VECTORS["rows"])
    assert ask(ctl) == ask(ctl, "total")


def test_without_rows_there_is_no_table(fake: FakeDaemon, ctl: Ctl) -> None:
    fake.answers["stats"] = stats(requests=1)
    assert ask(ctl) == "up 100 s\nrequests 1\n" and Stats(fake.answers["stats"]).table() == ""


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--sort", "speed"), "no column `speed`"),
        (("--by", "calls"), "not `calls`"),
        (("--by", "op,"), "not ``"),
        (("--by", "op", "--sort", "device"), "--sort device is not possible with --by op"),
        (("--limit", "few"), "not `few`"),
        (("--by", "op", "--json"), "not with --json"),
    ],
)
def test_wrong_options(ctl: Ctl, words: tuple[str, ...], says: str) -> None:
    assert says in ctl("stats", *words, status=2).stderr


def test_json_has_what_the_daemon_says(fake: FakeDaemon, ctl: Ctl) -> None:
    rows = VECTORS["rows"]
    fake.answers["stats"] = stats(rows=rows)
    assert json.loads(ctl("stats", "--json").stdout)["ops"] == rows


def test_a_daemon(real: support.Daemon) -> None:
    """The counts, bytes and operations of a real run."""
    ctl = Ctl(real.socket_path)
    ctl("run", "gemm", "--shape", "32x16,16x8", "--dtype", "f64", "--repeat", "5", "--warmup", "0")
    (row,) = json.loads(ctl("stats", "--json").stdout)["ops"]
    assert (row["count"], row["bytes"], row["operations"]) == (5, 8 * (32 * 16 + 16 * 8 + 32 * 8), 2 * 32 * 16 * 8)
    cells = dict(zip(*split(table(ctl("stats").stdout, "op")), strict=True))
    mean = row["exec_us"]["mean"]
    assert (cells["shapes"], cells["calls"], cells["errors"], cells["share %"]) == ("32x16,16x8,32x8", "5", "0", "100.0")
    for title, value in {"total ms": 5 * mean / 1e3, "GB/s": row["bytes"] / mean / 1e3, "GFLOP/s": row["operations"] / mean / 1e3}.items():
        assert float(cells[title]) == pytest.approx(value, rel=0.01, abs=0.0051), title
