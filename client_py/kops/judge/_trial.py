"""Whether a baseline is one: it ends, and computes what its task says. What it does is the task's fault, never a solution's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._check import compare
from ._draws import Draw
from ._errors import BaselineFault, TaskFault
from ._rounds import say
from ._task import Task
from ._values import FLOATS, Tensor, tensor_of
from ._verdict import Worst

_POLL_S = 0.001
_lost: dict[int, str] = {}  # by torch's number of a GPU: what has become of its context in this process


def refuse(task: Task, worst: Worst | None) -> None:
    """Raises BaselineFault for a result that is wrong. Less precise than a solution must be, it may be."""
    if worst is not None and worst.why not in ("precision", "small"):
        raise BaselineFault(f"task {task.name}: its baseline is wrong: {say(worst)}")


def right(task: Task, draw: Draw, got: Mapping[str, Tensor]) -> None:
    """Raises BaselineFault where an output is not what the reference says."""
    for expected in draw.expected:
        one = got[expected.name]
        if one.shape != expected.shape:
            raise BaselineFault(
                f"task {task.name}: its baseline answers {expected.name} as {list(one.shape)}, and its reference as {list(expected.shape)}"
            )
        if (one.dtype in FLOATS) != (expected.dtype in FLOATS):
            raise BaselineFault(
                f"task {task.name}: its baseline answers {expected.name} as {one.dtype}, and its reference as {expected.dtype}"
            )
        if one.dtype not in FLOATS and one.dtype != expected.dtype:
            one = Tensor(expected.dtype, one.data.astype(expected.values.dtype))
        refuse(task, compare(task, expected, one, draw.case, draw.number))


def by_name(task: Task, values: Sequence[Any]) -> dict[str, Any]:
    if len(values) != len(task.outputs):
        raise BaselineFault(f"task {task.name}: its baseline answers {len(values)} arrays for the outputs {', '.join(task.outputs)}")
    return dict(zip(task.outputs, values))


def tensors_of(task: Task, answer: Any) -> dict[str, Tensor]:
    """What a function answered, by the task's outputs."""
    values = by_name(task, list(answer) if isinstance(answer, (tuple, list)) else [answer])
    try:
        return {name: tensor_of(value, f"the output {name}") for name, value in values.items()}
    except TaskFault as error:
        raise BaselineFault(f"task {task.name}: its baseline: {error.message}") from None


def ended(query: Callable[[], bool], seconds: float) -> bool:
    """Waits for work of torch's, but no longer than that."""
    end = time.monotonic() + seconds
    while not query():
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True


def lose(index: int, task: Task, why: str) -> None:
    """torch's context of this process is of no use any more: a fault in it stays, and so does a kernel that never ends."""
    _lost.setdefault(index, f"the baseline of the task {task.name} {why}")


def is_lost(index: int) -> str | None:
    return _lost.get(index)
