"""One solution judged from its draws on: what runs it, on a GPU or in the interpreter, in which steps, and the verdict that comes of it."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from .._companions import Stopwatch
from ._draws import Draw, changed_input, check_outputs, new_seed
from ._solution import Plan, Solution, plan_of
from ._task import Case, Task
from ._values import Tensor
from ._verdict import Refused, Stop, TaskFault, Verdict, Worst

PLANS_MOST = 64  # plans to keep


class Step(NamedTuple):
    """A launch on a draw. Steps with one name in `buffers` use the same memory for the same plan, as far as that can be. `side`: where
    tensors touch memory that is not mapped, their "end" or their "start"."""

    draw: Draw
    buffers: str
    side: str


class Ran(NamedTuple):
    """The content of one draw's memory after its launches, and the rubbish from before."""

    outputs: dict[str, Tensor]
    inputs: dict[str, Any]
    poisons: dict[str, Any]


def _wrong(task: Task, draw: Draw, ran: Ran) -> Worst | None:
    return changed_input(draw, ran.inputs) or check_outputs(task, draw, ran.outputs, ran.poisons)


class Runner:
    """Runs one solution, whose module state begins anew with the runner."""

    how = ""
    device = ""
    multiprocessors: int | None = None
    warnings: tuple[str, ...] = ()
    checked = 0  # launches whose results were right

    def __init__(self, solution: Solution) -> None:
        self.solution = solution
        self._plans: dict[Any, Plan] = {}

    def plan(self, task: Task, draw: Draw) -> Plan:
        """The plan of a case and its numbers, which draws share. Raises Refused. Any thread's."""
        key = (draw.case, *draw.numbers.items())
        found = self._plans.get(key)
        if found is None:
            if len(self._plans) >= PLANS_MOST:
                self._plans.clear()
            found = self._plans[key] = plan_of(task, self.solution, draw, self.multiprocessors)
        return found

    def steps(self, task: Task, steps: Sequence[Step]) -> Iterator[Callable[[], Worst | None]]:
        """Runs them one after the other. What it yields says, in their order, what is wrong with each, or None; there may be later steps
        that have run by then. Raises Stop, Refused, Gone, behind the steps before."""
        for step in steps:
            ran = self.run(self.plan(task, step.draw), step, new_seed())
            yield partial(_wrong, task, step.draw, ran)

    def in_rounds(self, draws: Sequence[Draw]) -> bool:
        """Whether steps on these draws come in rounds, each of which has memory of its own for all its steps."""
        return False

    def at_once(self, task: Task, draws: Mapping[Case, Sequence[Draw]]) -> list[list[Case]]:
        """Cases whose steps are better run together. Raises Refused."""
        return [[case] for case in draws]

    def run(self, plan: Plan, step: Step, seed: int) -> Ran:
        """All launches, once. `seed`: of the poison. Raises Stop, Gone."""
        raise NotImplementedError

    def close(self, lost: bool = False) -> None:
        """Lets go of everything. `lost`: kernels of the solution may still write to its memory."""


# Steps

class _Planned(NamedTuple):
    draw: int
    buffers: str
    side: str


# Equal inputs come again at other addresses, and other inputs at known addresses, in the next launch or later. So a
# kernel that keeps the results of one launch for another is wrong.
ROUNDS = (
    (_Planned(0, "b", "start"), _Planned(0, "a", "end")),
    (_Planned(1, "a", "end"), _Planned(2, "c", "start")),
)  # fmt: skip
MORE = "b", "start"  # memory for further draws, which held the first one before
DRAWS = 1 + max(step.draw for some in ROUNDS for step in some)


def say(worst: Worst) -> str:
    """A sentence that says how a result is wrong."""
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
    """The steps of cases, round by round. Each case has its draws, and more that come behind them. The second round begins with the case
    with which the first one ends, so that a launch has other inputs at the addresses of the one just before it. Without rounds a case has
    two memories at most."""
    numbered = list(enumerate(cases))
    steps: list[Step] = []
    for some in ROUNDS:
        memories = [one.buffers if in_rounds or one.buffers == "a" else MORE[0] for one in some]
        steps += [Step(draws[one.draw], f"{name}{i}", one.side) for i, (draws, _) in numbered for one, name in zip(some, memories)]
        numbered.reverse()
    for draws in itertools.zip_longest(*(more for _, more in cases)):
        steps += [Step(draw, f"{MORE[0]}{i}", MORE[1]) for i, draw in enumerate(draws) if draw is not None]
    return steps


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


# The verdict

@dataclass(eq=False)
class Job:
    """A solution on its way. `draws` are those of each case, the timed ones apart."""

    task: Task
    solution: Solution
    future: Any
    begun: float = field(default_factory=time.monotonic)
    draws: dict[Case, tuple[Draw, ...]] = field(default_factory=dict)
    more: Mapping[Case, tuple[Draw, ...]] = field(default_factory=dict)
    timed: tuple[Draw, ...] = ()
    flops: float | None = None  # floating-point operations of the timed case
    dtype: str = ""  # dtype of its arithmetic
    warnings: tuple[str, ...] = ()
    allocates: bool = True  # the solution's kernels may have a heap, as far as is known
    ahead: bool = False  # the job counts as one whose draws are in memory
    kept: Callable[[], Sequence[Draw]] = lambda: ()  # further draws for its times, made for other solutions
    keep: Callable[[Draw], None] = lambda draw: None  # takes a draw that was made for its times, for later solutions
    work: Stopwatch = field(default_factory=Stopwatch)  # runs during the stages, not during the queues between them
    spent: dict[str, float] = field(default_factory=dict)  # seconds by part

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Adds a part of the time in which nothing else is judged."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.spent[name] = self.spent.get(name, 0.0) + time.monotonic() - begun

    def verdict(self, kind: str, text: str = "", **members: Any) -> Verdict:
        members["warnings"] = tuple(dict.fromkeys((*self.warnings, *members.get("warnings", ()))))
        return Verdict(kind, text, self.task.name, self.solution.name, seconds=time.monotonic() - self.begun, **members)


def _proven(task: Task, done: Sequence[str]) -> tuple[str, str]:
    """Kind and text where nothing is wrong in the cases that were run."""
    missing = [one for one in map(str, task.all_cases) if one not in done]
    if not missing:
        return "right", ""
    others = f"and {len(missing) - 1} more of its cases do" if len(missing) > 1 else "does"
    where = f"in the small cases that ran here: {'; '.join(done)}" if done else "since no case ran"
    left = f"The case {missing[0]} of the task {others} not run here: a judge with a GPU runs them all"
    return "unproven", f"nothing is wrong {where}. {left}"


def verdict_of(
    job: Job, make: Callable[[], Runner], timing: Callable[[Runner], Any] | None = None, prepare: Callable[[Runner], None] | None = None
) -> tuple[Verdict, bool]:
    """The verdict, and whether the runner's process is to be given up. `timing` answers the verdict's time, for a right solution;
    `prepare` is called for it before the last cases are run. Raises Gone."""
    runner: Runner | None = None
    done: list[str] = []
    lost = True
    try:
        with job.part("begin"):
            runner = make()
        with job.part("check"):
            groups = runner.at_once(job.task, job.draws)
            for i, cases in enumerate(groups, 1):
                if prepare is not None and i == len(groups):
                    prepare(runner)
                check_cases(job.task, runner, [(job.draws[case], job.more.get(case, ())) for case in cases])
                done += map(str, cases)
        found = timing(runner) if timing is not None else None
        lost = False
    except Refused as error:
        stop, lost = Stop("refused", error.message), False
    except TaskFault as error:
        stop, lost = Stop("no_verdict", error.message), False
    except Stop as error:
        stop, lost = error, error.kind in ("faulted", "hangs")
    else:
        members: dict[str, Any] = {"how": runner.how, "device": runner.device, "cases": tuple(done), "launches": runner.checked}
        members["warnings"] = runner.warnings
        if found is not None:
            members |= {"time": found.time, "warnings": (*runner.warnings, *found.warnings)}
        return job.verdict(*_proven(job.task, done), **members), False
    finally:
        if runner is not None:
            with job.part("end"):
                runner.close(lost)
    how: dict[str, Any] = {}
    if runner is not None:
        how = {"how": runner.how, "device": runner.device, "warnings": runner.warnings, "launches": runner.checked}
    return job.verdict(stop.kind, stop.text, cases=tuple(done), **how, **stop.members), stop.dirty
