"""What a solution's time is compared with: another solution, a function in torch, or an op of the daemon's."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from .._base.errors import KopsError
from ._draws import Draw
from ._errors import Refused, TaskFault
from ._gpu import GpuRunner
from ._solution import Solution
from ._stop import Stop
from ._task import Task
from ._values import as_like

__all__ = ["Baseline", "Baselines", "baseline_of"]

KEPT = 8  # of tasks


class Baseline:
    """`us` runs it once on a draw, with cold caches, and answers how long it took. `images` are those of the inputs' memory."""

    def us(self, draw: Draw, images: Mapping[str, Any], flush: Callable[[], None]) -> float | None:
        raise NotImplementedError

    def close(self) -> None:
        """Lets go of everything."""


class _Solution(Baseline):
    def __init__(self, task: Task, solution: Solution, make: Callable[[Solution], GpuRunner]) -> None:
        self.task = task
        self.runner = make(solution)
        self.failed = False

    def us(self, draw: Draw, images: Mapping[str, Any], flush: Callable[[], None]) -> float | None:
        runner = self.runner
        self.failed = True
        try:
            plan = runner.plan(self.task, draw)
            memory = runner.memory(plan, "end")
            runner.ended(runner.fill(memory, {name: images[name] for name in draw.tensors if name in images}))
            flush()
            timings = runner.launched(plan, memory, timed=True)
        except (Stop, Refused) as error:
            raise TaskFault(f"task {self.task.name}: its baseline does not run: {error}") from None
        self.failed = False
        runner.release(memory)
        return timings.exec_us if timings is not None else None

    def close(self) -> None:
        self.runner.close(lost=self.failed)


class _Torch(Baseline):
    """In this process, between two events on a stream of torch's."""

    def __init__(self, task: Task, function: Callable[..., Any], index: int) -> None:
        import torch

        self.torch, self.task, self.function = torch, task, function
        self.device = torch.device("cuda", index)
        self.warmed = False

    def us(self, draw: Draw, images: Mapping[str, Any], flush: Callable[[], None]) -> float | None:
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

    def us(self, draw: Draw, images: Mapping[str, Any], flush: Callable[[], None]) -> float | None:
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


class Baselines:
    """Those of the last few tasks, for all solutions of them. One thread at a time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[object, Baseline | None] = OrderedDict()

    def of(self, task: Task, make: Callable[[Task], Baseline | None]) -> Baseline | None:
        if task.key in self._kept:
            self._kept.move_to_end(task.key)
            return self._kept[task.key]
        while len(self._kept) >= KEPT:
            self._close(self._kept.popitem(last=False)[1])
        made = self._kept[task.key] = make(task)
        return made

    def clear(self) -> None:
        while self._kept:
            self._close(self._kept.popitem()[1])

    @staticmethod
    def _close(one: Baseline | None) -> None:
        if one is not None:
            one.close()


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
