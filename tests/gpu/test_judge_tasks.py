"""kops.judge on a GPU: every known cheat, what tutorials begin with, and problems of KernelBench's form."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kops import judge
from kops.judge import tutorial
from support.daemon import Daemon

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests" / "judge"))

from cheats import EXPECTED, TASKS, judged, solution  # noqa: E402

PROBLEMS = ROOT / "tests" / "judge" / "problems"


@pytest.fixture(scope="module")
def judging(judges: Daemon) -> Iterator[judge.Judge]:
    with judge.Judge(judges.socket_path) as made:
        yield made


@pytest.mark.parametrize("name", EXPECTED)
def test_a_cheat_is_found_out(judging: judge.Judge, name: str) -> None:
    judged(judging, name)


@pytest.mark.parametrize("task", sorted({one.task for one in EXPECTED.values()}))
def test_honest_solutions_are_right(judging: judge.Judge, task: str) -> None:
    verdict = judging.judge(TASKS[task], solution(f"honest/{task}"))
    assert verdict.right and verdict.time is not None, verdict


@pytest.mark.parametrize("task", tutorial.tasks, ids=lambda task: task.name)
def test_what_tutorials_begin_with(judging: judge.Judge, task: judge.Task) -> None:
    verdict = judging.judge(task, task.baseline)
    assert verdict.right and verdict.time is not None and verdict.time.speedup is not None, verdict
    assert 0.8 < verdict.time.speedup < 1.25, "it is its own baseline"


def test_a_problem_of_kernelbench_s_form(judging: judge.Judge, torch: Any) -> None:
    from kops.judge import kernelbench
    from test_kernelbench import ROWS

    task = kernelbench.load(PROBLEMS / "scaled_rows.py", {"batch_size": 5, "out_features": 10}, device="cuda")
    assert judging.judge(task, ROWS).right
    broken = judge.Solution(ROWS.source.replace("+ bias[o]", ""), ROWS.launches)
    verdict = judging.judge(task, broken)
    assert (verdict.kind, verdict.why) == ("wrong", "value"), verdict
