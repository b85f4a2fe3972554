"""What a solution's time is compared with: another solution, a function in torch, or an op of the daemon's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from .._base.errors import KopsError
from ._bind import Plan, plan_of
from ._draws import Draw
from ._errors import Refused, TaskFault
from ._gpu import GpuRunner
from ._poison import poisons_of
from ._solution import Solution
from ._stop import Stop
from ._task import Task
from ._values import as_like

__all__ = ["Baseline", "baseline_of"]


class Baseline:
    """`us(draw)` runs it once on a draw, with cold caches, and answers how long it took."""

    def us(self, draw: Draw, flush: Callable[[], None]) -> float | None:
        raise NotImplementedError

    def close(self) -> None:
        """Lets go of everything."""


class _Solution(Baseline):
    def __init__(self, task: Task, solution: Solution, make: Callable[[Solution], GpuRunner]) -> None:
        self.task, self.solution = task, solution
        self.runner = make(solution)

    def us(self, draw: Draw, flush: Callable[[], None]) -> float | None:
        try:
            plan: Plan = plan_of(self.task, self.solution, draw, self.runner.multiprocessors)
            memory = self.runner.memory(plan, "end")
            self.runner.fill(memory, draw, poisons_of(plan, draw.number), draw.number)
        except (Stop, Refused) as error:
            raise self._fault(error) from None
        flush()
        try:
            timings = self.runner.launched(plan, memory, timed=True)
        except Stop as error:
            raise self._fault(error) from None
        return timings.exec_us if timings is not None else None

    def _fault(self, error: Exception) -> TaskFault:
        return TaskFault(f"task {self.task.name}: its baseline does not run: {error}")

    def close(self) -> None:
        self.runner.close()
        self.runner.executor.close()


class _Torch(Baseline):
    """In this process, between two events on a stream of torch's."""

    def __init__(self, task: Task, function: Callable[..., Any], index: int) -> None:
        import torch

        self.torch, self.task, self.function = torch, task, function
        self.device = torch.device("cuda", index)
        self.warmed = False

    def us(self, draw: Draw, flush: Callable[[], None]) -> float | None:
        torch = self.torch
        given: dict[str, Any] = dict(draw.numbers)
        for name, tensor in draw.tensors.items():
            value = as_like(tensor, draw.originals[name])
            given[name] = (value if hasattr(value, "cuda") else torch.from_numpy(value)).to(self.device)
        try:
            if not self.warmed:
                self.function(**given)  # compiles, allocates
                self.warmed = True
            torch.cuda.synchronize(self.device)
            flush()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            self.function(**given)
            end.record()
            end.synchronize()
        except Exception as error:
            raise TaskFault(f"task {self.task.name}: its baseline raises {type(error).__name__}: {str(error)[:500]}") from None
        return float(begin.elapsed_time(end)) * 1e3


class _Op(Baseline):
    """An op of the daemon's, on the inputs in their order."""

    def __init__(self, task: Task, op: str, attrs: dict[str, Any], client: Any, device: Any) -> None:
        self.task, self.op, self.attrs, self.client, self.device = task, op, attrs, client, device
        if op not in client.ops:
            raise TaskFault(f"task {task.name}: the daemon has no op {op!r} for a baseline; it has {', '.join(client.ops)}")

    def us(self, draw: Draw, flush: Callable[[], None]) -> float | None:
        made: Any = []
        try:
            for one in draw.tensors.values():
                array = self.client.empty(one.shape, one.dtype, device=self.device)
                made.append(array.set(one.data))
            flush()
            answer = self.client.run(self.op, *made, timing=True, **self.attrs)
        except KopsError as error:
            raise TaskFault(f"task {self.task.name}: its baseline, the op {self.op}: {error.message}") from None
        timings = answer[1] if isinstance(answer, tuple) else answer
        us: float | None = timings.exec_us
        return us


def baseline_of(task: Task, make: Callable[[Solution], GpuRunner], client: Any, device: Any) -> Baseline | None:
    """None: the task has none. Raises TaskFault."""
    given = task.baseline
    if given is None:
        return None
    try:
        if isinstance(given, Solution):
            return _Solution(task, given, make)
        if isinstance(given, str):
            return _Op(task, given, {}, client, device)
        if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
            return _Op(task, given[0], dict(given[1]), client, device)
        if callable(given):
            return _Torch(task, given, _cuda_index(task, device))
    except (Stop, Refused) as error:
        raise TaskFault(f"task {task.name}: its baseline does not run: {error}") from None
    raise TaskFault(f"task {task.name}: its baseline is a Solution, a function in torch, or an op's name; not {given!r:.80}")


def _cuda_index(task: Task, device: Any) -> int:
    """The number that the same GPU has in torch, by its UUID."""
    try:
        import torch
    except ImportError:
        raise TaskFault(f"task {task.name}: its baseline is a function in torch, and torch is not installed") from None
    wanted = str(device.uuid).removeprefix("GPU-").lower()
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        with contextlib.suppress(AttributeError):
            if str(torch.cuda.get_device_properties(index).uuid).removeprefix("GPU-").lower() == wanted:
                return index
    raise TaskFault(f"task {task.name}: its baseline is a function in torch, which does not see the GPU {device.uuid}")


