"""`kops.ray.judge_many`: every solution has one verdict."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import kops
import kops.ray
import pytest
from judging import SOLUTIONS, TASK, TRIPLE, only_with_a_compiler, solution
from kops import judge
from support import chrome_trace

pytestmark = only_with_a_compiler


def test_each_solution_has_its_verdict(pool: kops.ray.Pool, tmp_path: Path) -> None:
    expected = [kind for kind, _ in SOLUTIONS] * 2
    run = kops.ray.judge_many(TASK, [one for _, one in SOLUTIONS] * 2, pool=pool, trace=tmp_path / "trace.json")
    verdicts = dict(run)
    assert [verdicts[i].kind for i in range(len(expected))] == expected
    assert all(verdict.how == "interpreter" and verdict.task == "double" for verdict in verdicts.values() if verdict.right)
    assert isinstance(verdicts[1], judge.Verdict) and verdicts[1].worst is not None
    assert run.trace is not None and sum(node["items"] for node in run.trace["nodes"]) == len(expected)
    events = chrome_trace.load(tmp_path / "trace.json")["traceEvents"]
    assert chrome_trace.check(events).categories["item"] == len(expected), "those that are judged at one time have rows of their own"


def test_a_task_for_each_solution_in_their_order(pool: kops.ray.Pool) -> None:
    tasks = [TASK, TRIPLE, TRIPLE, TASK]
    solutions = [solution("2 * in[i]", "a"), solution("2 * in[i]", "b"), solution("3 * in[i]", "c"), solution("3 * in[i]", "d")]
    verdicts = list(kops.ray.judge_many(iter(tasks), iter(solutions), ordered=True, pool=pool))
    assert [(i, v.task, v.solution, v.kind) for i, v in verdicts] == [
        (0, "double", "a", "right"), (1, "triple", "b", "wrong"), (2, "triple", "c", "right"), (3, "double", "d", "wrong")
    ]  # fmt: skip
    with pytest.raises(kops.BadArgument, match="fewer tasks"):
        list(kops.ray.judge_many([TASK], solutions, pool=pool))
    with pytest.raises(kops.BadArgument, match="got Task, str"):
        list(kops.ray.judge_many(TASK, ["source"], pool=pool))


def test_a_task_that_is_at_fault(pool: kops.ray.Pool) -> None:
    def fails(rng: Any, n: int) -> dict[str, Any]:
        raise ValueError("no such inputs")

    task = judge.Task("fails", lambda **given: given["in"], fails, [{"n": 4}])
    ((_, verdict),) = kops.ray.judge_many(task, [solution("in[i]", "any")], pool=pool)
    assert verdict.kind == "no_verdict" and "no such inputs" in verdict.text


def test_a_task_that_ends_its_worker(pool: kops.ray.Pool) -> None:
    """The verdicts of the others are there; its own says what happened."""
    def ends(rng: Any, n: int) -> dict[str, Any]:
        os._exit(1)

    task = judge.Task("ends", lambda **given: given["in"], ends, [{"n": 4}])
    tasks = [TASK] * 8 + [task] + [TASK] * 8
    verdicts = dict(kops.ray.judge_many(tasks, [solution("2 * in[i]", f"{i}") for i in range(17)], tries=2, pool=pool))
    assert sorted(verdicts) == list(range(17))
    gone = verdicts.pop(8)
    assert (gone.kind, gone.task, gone.solution) == ("no_verdict", "ends", "8") and "given up after 2 tries" in gone.text
    assert all(verdict.right for verdict in verdicts.values())
