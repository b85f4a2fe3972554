"""Solutions that are fast because they are not right: each is found out. docs/judge.md lists them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cheats import EXPECTED, HERE, TASKS, judged, solution
from kops import judge
from material import confined

PAGE = Path(__file__).resolve().parents[2] / "docs" / "judge.md"


def listed() -> dict[str, str]:
    """The verdict under which the page lists each cheat: `verdict`: `cheat`, `cheat` (how), …"""
    text = PAGE.read_text(encoding="utf-8").split("## Known cheats")[1].split("What is not found")[0]
    verdicts, verdict = {}, ""
    for word, begins in re.findall(r"`(\w+)`((?:, but gains nothing)?:)?", text):
        if begins:
            verdict = word
        verdicts[word] = verdict
    return verdicts


def test_the_page_names_every_cheat() -> None:
    assert {path.stem for path in HERE.glob("*.cu")} == set(EXPECTED)
    verdicts = listed()
    for name, found in EXPECTED.items():
        assert verdicts[name] in found.says, name


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
