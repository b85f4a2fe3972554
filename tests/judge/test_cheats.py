"""Solutions that are fast because they are not right: each is found out. docs/judge.md has the table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from kops import judge

CHEATS = Path(__file__).resolve().parent / "cheats"
TASKS = judge.load_tasks(CHEATS / "tasks.py")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "judge.md"


class Found(NamedTuple):
    """What a judge says of a cheat, in the interpreter and on a GPU: kinds, or reasons of `wrong`, of which one is enough."""

    interpreted: tuple[str, ...]
    gpu: tuple[str, ...]
    task: str = "affine"

    @classmethod
    def alike(cls, *kinds: str, task: str = "affine") -> Found:
        return cls(kinds, kinds, task)


EXPECTED = {
    "does_nothing": Found.alike("untouched"),
    "writes_half": Found.alike("untouched"),
    "halves_in_turns": Found.alike("untouched"),
    "counts_launches": Found.alike("untouched", "unstable"),
    "keeps_the_answer": Found.alike("value"),
    "remembers_pointers": Found.alike("value"),
    "compares_samples": Found.alike("value"),
    "relies_on_scratch": Found.alike("right"),  # there is nothing in it, so it has to compute
    "changes_the_inputs": Found.alike("input_changed"),
    "looks_for_the_answer": Found.alike("faulted"),
    "one_too_far": Found.alike("faulted"),
    "forges_completion": Found.alike("faulted"),
    "knows_one_size": Found.alike("untouched"),
    "says_not_a_number": Found.alike("value"),
    "rounds_to_half": Found.alike("precision", "value", task="product"),
    "guesses_the_mean": Found.alike("value", task="sums"),
    "reads_a_sample": Found.alike("value", task="sums"),
    "never_ends": Found.alike("hangs"),
}


def solution(name: str) -> judge.Solution:
    return judge.load_solution(CHEATS / f"{name}.cu")


def check(verdict: judge.Verdict, kinds: tuple[str, ...]) -> None:
    assert (verdict.why or verdict.kind) in kinds, verdict


def test_the_table_names_every_cheat() -> None:
    assert {path.stem for path in CHEATS.glob("*.cu")} == set(EXPECTED)
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.M)) >= set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_cheat_is_found_out_in_the_interpreter(name: str) -> None:
    with judge.Judge(how="interpreter", seed=7, interpreted_deadline=4.0) as judging:
        check(judging.judge(TASKS[EXPECTED[name].task], solution(name)), EXPECTED[name].interpreted)


@pytest.mark.parametrize("task", sorted({one.task for one in EXPECTED.values()}))
def test_the_tasks_have_right_solutions(interpreter: judge.Judge, task: str) -> None:
    verdict = interpreter.judge(TASKS[task], solution(f"honest/{task}"))
    assert verdict.right and not verdict.warnings, verdict
