"""A judge's part of a daemon's GPU: the processes that solutions run in, their memory, baselines, and what the device can do."""

from __future__ import annotations

import contextlib
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

from .. import Array, Client, Device, KopsError
from .._companions import BY_CODE, DTYPES, numpy, view_of, wire_dtype
from ..profiler._report import gflop_s
from ._carrier import Carrier
from ._draws import Draw, compare, new_seed
from ._gpu import Executor, GpuRunner, errors, wrong_in
from ._runner import say
from ._shelf import Shelf
from ._solution import Solution
from ._task import Task
from ._values import FLOATS, Tensor, as_like, bits_dtype, tensor_of
from ._verdict import LOST, BaselineFault, Gone, Refused, Stop, TaskFault, Worst, gone

PEAK_ELEMENTS = 16 << 20
SPARE_FROM = 80  # solutions of an executor after which the next executor is made ready
# A process on a GPU takes longer to begin than a solution takes to be judged. With the solution's and the baselines'
# processes these are as many as the daemon gives one user where it has eight (`executors.max`).
SPARES, SPARES_STRICT = 1, 2
# Errors for which the judge's own kernels do not run now, but may later.
_FOR_NOW = tuple(BY_CODE[code] for code in ("quota_exceeded", "out_of_memory", "no_memory", "limit_exceeded", "job_timeout",
                                            "deadline_exceeded"))  # fmt: skip


class Peaks(NamedTuple):
    """The roofs: measured peaks of the device."""

    gb_s: float | None = None
    gflop_s: Mapping[str, float] = {}  # by dtype
    # The daemon's clock over N trivial launches, in microseconds, by N; filled as it is measured.
    overheads: dict[int, float] | None = None


class Machine:
    """`beside` runs a function on another thread. Used by one thread, but for what it gives that."""

    def __init__(
        self, path: Any, timeout: float, trusted: Client, device: Device, crew: ThreadPoolExecutor, strict: bool, deadline: float,
        beside: Callable[[Callable[[], None]], None],
    ) -> None:  # fmt: skip
        self._path, self._timeout, self.trusted, self.device, self._crew = path, timeout, trusted, device, crew
        self._strict, self._deadline, self._beside = strict, deadline, beside
        self.executor: Executor | None = Executor(path, timeout)
        self.spares: deque[Future[Executor]] = deque()  # executors for the time when this one is given up
        self.carrier: Carrier | None = None
        self._baselines = Baselines()
        self._trusted_executor: Executor | None = None
        self.shelf: Shelf | None = None
        self._no_shelf = False
        self._peak_gb_s: float | None = None
        self._peak_tried = False
        self._peak_gflop_s: dict[str, float] = {}
        self._overheads: dict[int, float] = {}

    def runner(self, solution: Solution, more: int, alone: bool = False) -> GpuRunner:
        """`more`: solutions that come behind it. `alone`: in a process that no other solution had. Raises Stop, Gone."""
        executor = self._executor_for(solution, more, alone)
        return GpuRunner(executor, self._carrier(), solution, self.device, self._deadline, self._shelf())

    def _carrier(self) -> Carrier:
        if self.carrier is None:
            with gone("no connection"):
                self.carrier = Carrier(self._path, self._timeout, self.device, self._crew)
        return self.carrier

    def _shelf(self) -> Shelf | None:
        """None: the device does not run the judge's own kernels, or the daemon runs no kernels of this user just now."""
        if self.shelf is None and not self._no_shelf:
            try:
                self.shelf = Shelf(self._carrier(), self._own_executor().client, self.device)
            except LOST as error:
                raise Gone(f"{error.message} [{error.code}]") from None
            except _FOR_NOW:
                return None
            except KopsError:
                self._no_shelf = True
                self.drop_baselines()
        return self.shelf

    # Executors

    def _executor_for(self, solution: Solution, more: int, alone: bool) -> Executor:
        if self.executor is not None and not self.executor.takes(solution, alone):
            self.drop()
        if self.executor is None:
            self.executor = self.spares.popleft().result() if self.spares else self._new_executor()
        if self._strict or self.executor.solutions >= SPARE_FROM:
            while len(self.spares) < min(more, SPARES_STRICT if self._strict else SPARES):
                self.spares.append(self._ready_spare())
        return self.executor

    def _ready_spare(self) -> Future[Executor]:
        """An executor whose process begins while others are used."""
        made: Future[Executor] = Future()

        def begin() -> None:
            try:
                executor = self._new_executor()
                executor.begin(self.device)
            except BaseException as error:
                made.set_exception(error)
            else:
                made.set_result(executor)

        self._beside(begin)
        return made

    def quiet(self) -> None:
        """Waits until no process begins on the GPU for this judge."""
        wait(self.spares)

    def _new_executor(self) -> Executor:
        with gone("no connection"):
            return Executor(self._path, self._timeout)

    def drop(self) -> None:
        """Closes the executor, which is not used again."""
        executor, self.executor = self.executor, None
        if executor is not None:
            executor.close()

    def let_go(self) -> None:
        """Lets go of all that the daemon has for the judge."""
        self.drop()
        self.drop_baselines()
        while self.spares:
            self.spares.popleft().add_done_callback(_close)
        carrier, self.carrier = self.carrier, None
        if carrier is not None:
            carrier.close()

    # Baselines are the tasks' own, and trusted: they share an executor.

    def baseline(self, task: Task) -> Baseline | None:
        """Raises TaskFault."""
        return self._baselines.of(task, lambda one: baseline_of(one, self._baseline_runner, self.trusted, self.device))

    def _baseline_runner(self, solution: Solution) -> GpuRunner:
        return GpuRunner(self._own_executor(), self._carrier(), solution, self.device, self._deadline)

    def _own_executor(self) -> Executor:
        """The executor of trusted kernels: baselines, and the judge's own."""
        if self._trusted_executor is None:
            self._trusted_executor = self._new_executor()
        return self._trusted_executor

    def drop_baselines(self) -> None:
        self._baselines.clear()
        shelf, self.shelf = self.shelf, None
        if self.carrier is not None:
            self.carrier.settle()  # in the process that ends here
        if shelf is not None:
            with contextlib.suppress(Gone):
                shelf.clear()
            shelf.carrier.alone()
        executor, self._trusted_executor = self._trusted_executor, None
        if executor is not None:
            executor.close()

    # Roofs

    def peaks(self, given_gb_s: float | None, given_gflop_s: Mapping[str, float], dtype: str) -> Peaks:
        """The peaks of the daemon's ops on the device. Peaks that are not given are measured once. `dtype`: of arithmetic; empty: none."""
        if given_gb_s is None and not self._peak_tried:
            self._peak_tried = True
            with contextlib.suppress(KopsError):
                self._peak_gb_s = self._bandwidth()
        if dtype and dtype not in given_gflop_s and dtype not in self._peak_gflop_s:
            self._peak_gflop_s[dtype] = 0.0
            with contextlib.suppress(KopsError):
                self._peak_gflop_s[dtype] = gflop_s(self.trusted, self.device, dtype) or 0.0
        return Peaks(given_gb_s or self._peak_gb_s, {**self._peak_gflop_s, **given_gflop_s}, self._overheads)

    def _bandwidth(self) -> float | None:
        a, b, c = (self.trusted.zeros((PEAK_ELEMENTS,), "f32", device=self.device) for _ in range(3))
        made = self.trusted.profile("add", a, b, out=c, warmup=2, repeat=10, conditions=False)
        return made.bytes / made.min / 1e3 if made.min else None


def _close(made: Future[Executor]) -> None:
    if made.exception() is None:
        made.result().close()


# Baselines

KEPT = 8  # kept baselines of a task
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
        with _faults_of(self.task):
            plan = runner.plan(self.task, draw)
            memory = runner.memory(plan, "end")
            if not self.checked:  # outputs are filled with rubbish, too
                staged = runner.carrier.stage(plan, draw, new_seed())
            given = {name: images[name] for name in draw.tensors if name in images} if staged is None else staged.images
            runner.ended(runner.fill(memory, given))
        try:
            flush()
            with _faults_of(self.task):
                timings = runner.launched(plan, memory, timed=True)
                if staged is not None:
                    refuse(self.task, wrong_in(self.task, staged, runner.ended(runner.read(memory))))
                    self.checked = True
        finally:
            runner.release(memory)
        self.failed = False
        return timings.exec_us if timings is not None else None

    def close(self) -> None:
        self.runner.close(lost=self.failed)


class _Torch(Baseline):
    """In this process, between two events on a stream of torch's."""

    def __init__(self, task: Task, function: Callable[..., Any], index: int) -> None:
        import torch

        self.torch, self.task, self.function = torch, task, function
        self.device = torch.device("cuda", index)
        if (why := _lost.get(index)) is not None:
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
            # Keeps the GPU busy until all is enqueued: between two events the GPU must not wait for this process, or
            # work for another one.
            torch.cuda._sleep(SLEEP_CYCLES)
            begin.record()
            self.function(**given)
            end.record()
            self._wait(end)
        except (Gone, Stop, TaskFault):
            raise  # an error of the solution's connection, or one that was told already
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
        """Notes whether an error is a fault on the GPU, which stays in torch's context."""
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
        with _faults_of(self.task), errors(self.op):
            made = [self.client.empty(one.shape, one.dtype, device=self.device).set(one.data) for one in draw.tensors.values()]
        flush()
        with _faults_of(self.task), errors(self.op):
            out, timings = self.client.run(self.op, *made, timing=True, **self.attrs)
            found = None if self.checked else _copied(out)
        if found is not None:
            right(self.task, draw, by_name(self.task, [found]))
            self.checked = True
        us: float | None = timings.exec_us
        return us


def _copied(out: Array) -> Tensor:
    """The bits of an array: NumPy has not all dtypes."""
    dtype = wire_dtype(out)
    size = math.prod(out.shape) * DTYPES[dtype]
    if not size:
        return Tensor(dtype, numpy.empty(out.shape, bits_dtype(dtype)))
    return Tensor(dtype, view_of(out, "u8", (size,)).get().view(bits_dtype(dtype)).reshape(out.shape))


@contextlib.contextmanager
def _faults_of(task: Task) -> Iterator[None]:
    """The faults of a baseline in this block are the task's. Where there is no memory, say, the baseline may run the next time."""
    try:
        yield
    except (Stop, Refused) as error:
        kind = TaskFault if isinstance(error, Stop) and error.kind == "no_verdict" else BaselineFault
        raise kind(f"task {task.name}: its baseline does not run: {error}") from None


def baseline_of(task: Task, make: Callable[[Solution], GpuRunner], client: Any, device: Any) -> Baseline | None:
    """The baseline of a task; None where the task has none. Raises TaskFault."""
    given = task.baseline
    if given is None:
        return None
    with _faults_of(task):
        if isinstance(given, Solution):
            return _Solution(task, given, make)
        if isinstance(given, str):
            return _Op(task, given, {}, client, device)
        if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str):
            return _Op(task, given[0], dict(given[1]), client, device)
        if callable(given):
            return _Torch(task, given, _cuda_index(task, device))
    raise TaskFault(f"task {task.name}: its baseline is a Solution, a function in torch, or an op's name; not {given!r:.80}")


class Baselines:
    """Baselines of the last few tasks, for all solutions of them. One thread at a time."""

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


# Baselines are checked: each must end, and compute what its task says. A fault of theirs is the task's, never a
# solution's.

_POLL_S = 0.001
_lost: dict[int, str] = {}  # by torch's number of a GPU: the loss of its context in this process


def refuse(task: Task, worst: Worst | None) -> None:
    """Raises BaselineFault for a result that is wrong. Less precise than a solution must be, it may be."""
    if worst is not None and worst.why not in ("precision", "small"):
        raise BaselineFault(f"task {task.name}: its baseline is wrong: {say(worst)}")


def right(task: Task, draw: Draw, got: Mapping[str, Tensor]) -> None:
    """Raises BaselineFault where an output is not what the reference says."""
    for expected in draw.expected:
        one = got[expected.name]
        same = one.shape == expected.shape
        is_a, should_be = (one.dtype, expected.dtype) if same else (list(one.shape), list(expected.shape))
        if not same or (one.dtype in FLOATS) != (expected.dtype in FLOATS):
            said = f"{expected.name} as {is_a}, and its reference as {should_be}"
            raise BaselineFault(f"task {task.name}: its baseline answers {said}")
        if one.dtype not in FLOATS and one.dtype != expected.dtype:
            one = Tensor(expected.dtype, one.data.astype(expected.values.dtype))
        refuse(task, compare(task, expected, one, draw.case, draw.number))


def by_name(task: Task, values: Sequence[Any]) -> dict[str, Any]:
    if len(values) != len(task.outputs):
        raise BaselineFault(f"task {task.name}: its baseline answers {len(values)} arrays for the outputs {', '.join(task.outputs)}")
    return dict(zip(task.outputs, values))


def tensors_of(task: Task, answer: Any) -> dict[str, Tensor]:
    """A function's answer by the task's outputs."""
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


