"""What runs a solution on a draw: on a GPU, or in the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ._bind import Plan, plan_of
from ._check import changed_input, check_outputs
from ._draws import Draw, new_seed
from ._solution import Solution
from ._task import Case, Task
from ._values import Tensor
from ._verdict import Worst

PLANS_MOST = 64  # that are kept


class Step(NamedTuple):
    """A launch on a draw. Steps with one name in `buffers` use the same memory for the same plan, as far as that can be. `side`: where
    tensors touch memory that is not mapped, their "end" or their "start"."""

    draw: Draw
    buffers: str
    side: str


class Ran(NamedTuple):
    """What the memory of one draw holds afterwards, and what was there before."""

    outputs: dict[str, Tensor]
    inputs: dict[str, Any]
    poisons: dict[str, Any]


def _wrong(task: Task, draw: Draw, ran: Ran) -> Worst | None:
    return changed_input(draw, ran.inputs) or check_outputs(task, draw, ran.outputs, ran.poisons)


class Runner:
    """Of one solution: its module state begins anew with the runner."""

    how = ""
    device = ""
    multiprocessors: int | None = None
    warnings: tuple[str, ...] = ()
    checked = 0  # launches whose results were right

    def __init__(self, solution: Solution) -> None:
        self.solution = solution
        self._plans: dict[Any, Plan] = {}

    def plan(self, task: Task, draw: Draw) -> Plan:
        """What a case and its numbers have in common. Raises Refused. Any thread's."""
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
