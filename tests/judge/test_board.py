"""Leaderboards, and files of verdicts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from kops import BadArgument, judge
from kops.judge.__main__ import main

CHEATS = Path(__file__).resolve().parent / "cheats"


def timed(name: str, us: float, task: str = "t") -> judge.Verdict:
    return judge.Verdict("right", "", task, name, "gpu", "a GPU", time=judge.Time("n=1", judge.Measured(us, us - 1, us + 1, 9)))


VERDICTS = [
    timed("slow", 30.0),
    judge.Verdict("wrong", "no", "t", "liar", "gpu", worst=judge.Worst("value")),
    timed("fast", 10.0),
    judge.Verdict("unproven", "", "t", "small", "interpreter"),
    timed("slow", 20.0),
    judge.Verdict("right", "", "t", "untimed", "interpreter"),
    timed("other <b>", 5.0, "u"),
]


def test_the_fastest_is_first_and_each_solution_stands_once() -> None:
    assert [(one.solution, one.time and one.time.us) for one in judge.ranked(VERDICTS[:-1])] == [
        ("fast", 10.0), ("slow", 20.0), ("untimed", None), ("small", None), ("liar", None),
    ]  # fmt: skip


def test_the_page(tmp_path: Path) -> None:
    judge.leaderboard(VERDICTS, tmp_path / "board.html")
    page = (tmp_path / "board.html").read_text(encoding="utf-8")
    assert re.findall(r"<h2>(\w)</h2>", page) == ["t", "u"] and "3 of 5 solutions are right" in page
    rows = re.findall(r'<tr><td>(\d*)</td><td class="l">([^<]*)</td>', page)
    assert rows == [("1", "fast"), ("2", "slow"), ("3", "untimed"), ("", "small"), ("", "liar"), ("1", "other &lt;b&gt;")]
    assert "2.00 ×" in page, "the second takes twice as long as the first"
    with pytest.raises(BadArgument, match="a page"):
        judge.leaderboard(VERDICTS, tmp_path / "board.txt")


def test_verdicts_that_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, board = tmp_path / "kept.jsonl", tmp_path / "board.html"
    for name, status in (("honest/affine", 5), ("does_nothing", 1)):
        command = [f"{CHEATS / 'tasks.py'}:affine", str(CHEATS / f"{name}.cu"), "--interpret", "--kept", str(kept), "--board", str(board)]
        assert main(command) == status, capsys.readouterr()
    assert [one.kind for one in judge.load_verdicts(kept)] == ["unproven", "wrong"]
    assert "0 of 2 solutions are right" in board.read_text(encoding="utf-8")
    kept.write_text("{}\n")
    with pytest.raises(BadArgument, match="no verdict"):
        judge.load_verdicts(kept)
    with pytest.raises(BadArgument, match="none.jsonl"):
        judge.load_verdicts(tmp_path / "none.jsonl")
