"""The part of a judgement that says whether a solution is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ._bind import plan_of
from ._check import changed_input, check_outputs
from ._draws import Draw, new_seed
from ._runner import Runner
from ._solution import Solution
from ._stop import Stop
from ._task import Task
from ._verdict import Worst

__all__ = ["DRAWS", "check_case", "failed", "say"]


class _Step(NamedTuple):
    draw: int
    buffers: str
    side: str


# What was remembered of another launch is wrong here: other inputs at the same addresses, the same ones at others.
STEPS = (_Step(0, "a", "end"), _Step(1, "a", "end"), _Step(0, "b", "start"), _Step(2, "b", "start"))
DRAWS = 1 + max(step.draw for step in STEPS)


def say(worst: Worst) -> str:
    """What is wrong, in a sentence."""
    at = f"{worst.output}{list(worst.index) if worst.index else ''}"
    where = f"in the case {worst.case}, draw {worst.draw}"
    how_many = f"; {worst.wrong} of {worst.of} elements are wrong"
    if worst.why == "precision":
        return (
            f"{worst.output}: each element is within the tolerance, but the errors' root mean square is {worst.got:.3g}, more than "
            f"{worst.expected:.3g}: what the reference's own precision allows, {where}"
        )
    if worst.why == "input_changed":
        return f"the input {at} was {worst.expected!r} and is {worst.got!r} afterwards, {where}"
    if worst.why == "untouched":
        return f"{at} was not written, it should be {worst.expected!r}, {where}; so were {worst.wrong} of {worst.of} elements"
    if worst.why == "unstable":
        return f"{at} is {worst.got!r} and should be {worst.expected!r}, {where}, which was right in an earlier launch{how_many}"
    return f"{at} is {worst.got!r} and should be {worst.expected!r}, {where}{how_many}"


def failed(worst: Worst) -> Stop:
    return Stop("wrong", say(worst), dirty=True, worst=worst)


def check_case(task: Task, solution: Solution, runner: Runner, draws: Sequence[Draw], more: Sequence[Draw] = ()) -> None:
    """Runs a case in all steps, and `more` draws in the memory of the last one. Raises Stop for the first that is not right, Refused."""
    right: set[int] = set()
    steps = [(draws[step.draw], step.buffers, step.side) for step in STEPS]
    steps += [(draw, STEPS[-1].buffers, STEPS[-1].side) for draw in more]
    for draw, buffers, side in steps:
        plan = plan_of(task, solution, draw, runner.multiprocessors)
        ran = runner.run(plan, draw, buffers, side, new_seed())
        worst = changed_input(draw, ran.inputs) or check_outputs(task, draw, ran.outputs, ran.poisons)
        if worst is not None:
            if id(draw) in right and worst.why != "input_changed":
                worst = replace(worst, why="unstable")
            raise failed(worst)
        right.add(id(draw))
        runner.checked += 1
