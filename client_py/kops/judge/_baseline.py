"""What a solution's time is compared with: another solution, a function in torch, or an op of the daemon's."""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from .. import Array, Timings
from .._companions import DTYPES, numpy
from ._bind import Plan
from ._carrier import Memory, Staged
from ._draws import Draw, new_seed
from ._errors import BaselineFault, Refused, TaskFault
from ._gpu import GpuRunner, errors, wrong_in
from ._solution import Solution
from ._stop import Gone, Stop
from ._task import Task
from ._trial import by_name, ended, is_lost, lose, refuse, right, tensors_of
from ._values import Tensor, as_like, bits_dtype

KEPT = 8  # baselines, each of a task
SLEEP_CYCLES = 2_000_000  # 1 ms
TORCH_SECONDS = 60.0  # for one call of a function in torch, which nothing can end


class Baseline:
    """`us` runs it once on a draw, with cold caches, and answers how long it took. `images` are those of the inputs' memory. Its first
    result is checked. Raises TaskFault for all that it does wrong, Gone."""

    checked = False

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
        staged = None
        try:
            plan = runner.plan(self.task, draw)
            memory = runner.memory(plan, "end")
            if not self.checked:  # outputs are filled with rubbish, too
                staged = runner.carrier.stage(plan, draw, new_seed())
            given = {name: images[name] for name in draw.tensors if name in images} if staged is None else staged.images
            runner.ended(runner.fill(memory, given))
        except (Stop, Refused) as error:
            raise _fault(self.task, error) from None
        try:
            flush()
            timings = self._launched(plan, memory, staged)
        finally:
            runner.release(memory)
        self.failed = False
        return timings.exec_us if timings is not None else None

    def _launched(self, plan: Plan, memory: Memory, staged: Staged | None) -> Timings | None:
        runner = self.runner
        try:
            timings = runner.launched(plan, memory, timed=True)
            if staged is not None:
                refuse(self.task, wrong_in(self.task, staged, runner.ended(runner.read(memory))))
                self.checked = True
        except Stop as error:
            raise _fault(self.task, error) from None
        return timings

    def close(self) -> None:
        self.runner.close(lost=self.failed)


class _Torch(Baseline):
    """In this process, between two events on a stream of torch's."""

    def __init__(self, task: Task, function: Callable[..., Any], index: int) -> None:
        import torch

        self.torch, self.task, self.function = torch, task, function
        self.device = torch.device("cuda", index)
        if (why := is_lost(index)) is not None:
            raise TaskFault(
                f"task {task.name}: its baseline is a function in torch, and torch's context in this process is lost, since {why}: make "
                "the judge in a new process"
            )

    def us(self, draw: Draw, images: Mapping[str, Any], flush: Callable[[], None]) -> float | None:
        torch = self.torch
        given: dict[str, Any] = dict(draw.numbers)
        for name, tensor in draw.tensors.items():
            value = as_like(tensor, draw.originals[name])
            given[name] = (value if hasattr(value, "cuda") else torch.from_numpy(value)).to(self.device)
        try:
            if not self.checked:
                answer = self.function(**given)  # compiles, allocates
                self._wait()
                right(self.task, draw, tensors_of(self.task, answer))
                self.checked = True
            torch.cuda.synchronize(self.device)
            flush()
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            # The GPU is busy here until all is enqueued: between two events there is no time in which it waits for this
            # process, or works for another one.
            torch.cuda._sleep(SLEEP_CYCLES)
            begin.record()
            self.function(**given)
            end.record()
            self._wait(end)
        except (Gone, Stop, TaskFault):
            raise  # of the solution's connection, or said already
        except Exception as error:
            self._look(error)
            raise BaselineFault(f"task {self.task.name}: its baseline raises {type(error).__name__}: {str(error)[:500]}") from None
        return float(begin.elapsed_time(end)) * 1e3

    def _wait(self, event: Any = None) -> None:
        if event is None:
            event = self.torch.cuda.Event()
            event.record()
        if not ended(event.query, TORCH_SECONDS):
            lose(self.device.index, self.task, "does not end")
            raise BaselineFault(f"task {self.task.name}: its baseline does not end within {TORCH_SECONDS:g} s")

    def _look(self, error: Exception) -> None:
        """A fault on the GPU stays in torch's context."""
        try:
            self.torch.cuda.synchronize(self.device)
        except Exception:
            lose(self.device.index, self.task, f"raised {type(error).__name__}: {str(error)[:200]}")


class _Op(Baseline):
    """An op of the daemon's, on the inputs in their order."""

    def __init__(self, task: Task, op: str, attrs: dict[str, Any], client: Any, device: Any) -> None:
        self.task, self.op, self.attrs, self.client, self.device = task, op, attrs, client, device
        if op not in client.ops:
            raise TaskFault(f"task {task.name}: the daemon has no op {op!r} for a baseline; it has {', '.join(client.ops)}")

    def us(self, draw: Draw, images: Mapping[str, Any], flush: Callable[[], None]) -> float | None:
        try:
            with errors(self.op):
                made = [self.client.empty(one.shape, one.dtype, device=self.device).set(one.data) for one in draw.tensors.values()]
        except Stop as error:
            raise _fault(self.task, error) from None
        flush()
        try:
            with errors(self.op):
                out, timings = self.client.run(self.op, *made, timing=True, **self.attrs)
                found = None if self.checked else _copied(out)
        except Stop as error:
            raise _fault(self.task, error) from None
        if found is not None:
            right(self.task, draw, by_name(self.task, [found]))
            self.checked = True
        us: float | None = timings.exec_us
        return us


def _copied(out: Array) -> Tensor:
    """Its bits: NumPy has not all dtypes."""
    size = math.prod(out.shape) * DTYPES[out._type]
    if not size:
        return Tensor(out._type, numpy.empty(out.shape, bits_dtype(out._type)))
    whole = Array(out._client, out.device, out._block, out._start, (size,), (1,), "u8").get()
    return Tensor(out._type, whole.view(bits_dtype(out._type)).reshape(out.shape))


def _fault(task: Task, error: Stop | Refused) -> TaskFault:
    """Where there is no memory, say, it may run the next time."""
    kind = TaskFault if isinstance(error, Stop) and error.kind == "no_verdict" else BaselineFault
    return kind(f"task {task.name}: its baseline does not run: {error}")


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
        raise _fault(task, error) from None
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
