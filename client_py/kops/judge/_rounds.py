"""The part of a judgement that says whether a solution is right."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from ._draws import Draw
from ._runner import Runner, Step
from ._stop import Stop
from ._task import Task
from ._verdict import Worst


class _Planned(NamedTuple):
    draw: int
    buffers: str
    side: str


# The same inputs come at other addresses, and other inputs at the same addresses: in the next launch, or later. So a kernel that
# keeps the results of one launch for another is wrong.
ROUNDS = (
    (_Planned(0, "b", "start"), _Planned(0, "a", "end")),
    (_Planned(1, "a", "end"), _Planned(2, "c", "start")),
)  # fmt: skip
MORE = "b", "start"  # memory of further draws, which held the first one before
DRAWS = 1 + max(step.draw for some in ROUNDS for step in some)


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
    if worst.why == "small":
        return (
            f"{worst.output}: {worst.got} of {worst.of} elements are right only by the tolerance of the whole output's size, more than the "
            f"{worst.expected} that roundings explain: small elements are not computed, {where}. A task that allows that gives an `atol`"
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


def steps_of(cases: Sequence[tuple[Sequence[Draw], Sequence[Draw]]], in_rounds: bool = True) -> list[Step]:
    """Of cases, each with its draws, and more that come behind them: round by round. The second round begins with the case with which the
    first one ends, so that a launch has other inputs at the addresses of the one just before it. Without rounds a case has two
    memories at most."""
    numbered = list(enumerate(cases))
    steps: list[Step] = []
    for some in ROUNDS:
        steps += [Step(draws[one.draw], f"{_memory(one, in_rounds)}{i}", one.side) for i, (draws, _) in numbered for one in some]
        numbered.reverse()
    for draws in itertools.zip_longest(*(more for _, more in cases)):
        steps += [Step(draw, f"{MORE[0]}{i}", MORE[1]) for i, draw in enumerate(draws) if draw is not None]
    return steps


def _memory(one: _Planned, in_rounds: bool) -> str:
    return one.buffers if in_rounds or one.buffers == "a" else MORE[0]


def check_cases(task: Task, runner: Runner, cases: Sequence[tuple[Sequence[Draw], Sequence[Draw]]]) -> None:
    """Runs cases in all their steps. Raises Stop for the first that is not right, Refused."""
    right: set[int] = set()
    steps = steps_of(cases, runner.in_rounds([draw for some in cases for draws in some for draw in draws]))
    for step, wrong in zip(steps, runner.steps(task, steps), strict=True):  # to the runner's end
        worst = wrong()
        if worst is not None:
            if id(step.draw) in right and worst.why != "input_changed":
                worst = replace(worst, why="unstable")
            raise failed(worst)
        right.add(id(step.draw))
        runner.checked += 1
