"""Solutions that are fast because they are not right: each is found out. docs/judge.md has the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cheats import EXPECTED, HERE, TASKS, judged, solution
from kops import judge
from material import confined

PAGE = Path(__file__).resolve().parents[2] / "docs" / "judge.md"


def test_the_table_names_every_cheat() -> None:
    assert {path.stem for path in HERE.glob("*.cu")} == set(EXPECTED)
    rows = dict(re.findall(r"^\| `(\w+)` \|[^|]*\|([^|]*)\|$", PAGE.read_text(encoding="utf-8"), re.M))
    for name, found in EXPECTED.items():
        assert set(re.findall(r"`(\w+)`", rows[name])) == set(found.says), name


@pytest.mark.parametrize("name", EXPECTED)
def test_a_cheat_is_found_out_in_the_interpreter(interpreter: judge.Judge, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if name == "never_ends":
        monkeypatch.setattr(interpreter, "interpreted_deadline", 0.5)
    judged(interpreter, name)


@confined
@pytest.mark.parametrize("task", sorted({one.task for one in EXPECTED.values()}))
def test_the_tasks_have_right_solutions(interpreter: judge.Judge, task: str) -> None:
    verdict = interpreter.judge(TASKS[task], solution(f"honest/{task}"))
    assert verdict.kind == "unproven" and all("half of the inputs" in one for one in verdict.warnings), verdict
