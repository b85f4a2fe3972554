"""What is said of each cheat: for the tests in the interpreter and on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kops import judge

HERE = Path(__file__).resolve().parent
TASKS = judge.load_tasks(HERE / "tasks.py")


class Found(NamedTuple):
    """Kinds, or reasons of `wrong`, of which one is enough."""

    says: tuple[str, ...]
    task: str = "affine"


EXPECTED = {
    "does_nothing": Found(("untouched",)),
    "writes_half": Found(("untouched",)),
    "halves_in_turns": Found(("untouched",)),
    "counts_launches": Found(("untouched", "unstable")),
    "keeps_the_answer": Found(("value",)),
    "remembers_pointers": Found(("value", "unstable")),
    "compares_samples": Found(("value", "unstable")),
    "relies_on_scratch": Found(("right",)),  # there is nothing in it, so it has to compute
    "changes_the_inputs": Found(("input_changed",)),
    "looks_for_the_answer": Found(("faulted",)),
    "one_too_far": Found(("faulted",)),
    "forges_completion": Found(("faulted",)),
    "knows_one_size": Found(("untouched",)),
    "says_not_a_number": Found(("value",)),
    "rounds_to_half": Found(("precision", "value"), "product"),
    "guesses_the_mean": Found(("value",), "sums"),
    "reads_a_sample": Found(("value",), "sums"),
    "never_ends": Found(("hangs",)),
    "updates_the_answer": Found(("right",), "product"),  # no timed launch has inputs that it nearly knows, so it has to compute
    "takes_the_heap": Found(("right",)),  # and the next one has a heap of its own
    "skips_small_rows": Found(("small",), "gated"),
    "reads_a_sixteenth": Found(("precision",), "means"),
    "knows_the_mean": Found(("precision",), "centred"),
}


def solution(name: str) -> judge.Solution:
    return judge.load_solution(HERE / f"{name}.cu")


def judged(judging: judge.Judge, name: str) -> judge.Verdict:
    """The verdict on a cheat; AssertionError where it is another one than expected."""
    verdict = judging.judge(TASKS[EXPECTED[name].task], solution(name))
    kind = "right" if verdict.kind == "unproven" else verdict.kind  # in the interpreter, which runs the small cases alone
    assert (verdict.why or kind) in EXPECTED[name].says, verdict
    return verdict
