"""What a judge has of a daemon's GPU: the processes that solutions run in, their memory, baselines, and what the device can do."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from .. import Client, Device, KopsError
from .._companions import BY_CODE
from ..profiler._peaks import gflop_s
from ._baseline import Baseline, Baselines, baseline_of
from ._carrier import Carrier
from ._errors import LOST
from ._gpu import Executor, GpuRunner
from ._shelf import Shelf
from ._solution import Solution
from ._stop import Gone
from ._task import Task
from ._timed import Peaks

PEAK_ELEMENTS = 16 << 20
SPARE_FROM = 80  # solutions of an executor, from which on the next one is made ready
# A process on a GPU takes longer to begin than a solution to be judged. With the solution's and the baselines' these are as many as the
# daemon gives one user where it has eight (`executors.max`).
SPARES, SPARES_STRICT = 1, 2
# Why the judge's own kernels do not run just now, and may later.
_FOR_NOW = tuple(BY_CODE[code] for code in ("quota_exceeded", "out_of_memory", "no_memory", "limit_exceeded", "job_timeout",
                                            "deadline_exceeded"))  # fmt: skip


class Machine:
    """`beside` runs a function on another thread. Used by one thread, but for what it gives that."""

    def __init__(
        self, path: Any, timeout: float, trusted: Client, device: Device, crew: ThreadPoolExecutor, strict: bool, deadline: float,
        beside: Callable[[Callable[[], None]], None],
    ) -> None:  # fmt: skip
        self._path, self._timeout, self.trusted, self.device, self._crew = path, timeout, trusted, device, crew
        self._strict, self._deadline, self._beside = strict, deadline, beside
        self.executor: Executor | None = Executor(path, timeout)
        self.spares: deque[Future[Executor]] = deque()  # for when the executor is given up
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
            try:
                self.carrier = Carrier(self._path, self._timeout, self.device, self._crew)
            except KopsError as error:
                raise Gone(f"no connection: {error.message}") from None
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
        try:
            return Executor(self._path, self._timeout)
        except KopsError as error:
            raise Gone(f"no connection: {error.message}") from None

    def drop(self) -> None:
        """The executor is not used again."""
        executor, self.executor = self.executor, None
        if executor is not None:
            executor.close()

    def let_go(self) -> None:
        """Of all that the daemon has for it."""
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
        """Of what is trusted: baselines, and the judge's own kernels."""
        if self._trusted_executor is None:
            self._trusted_executor = self._new_executor()
        return self._trusted_executor

    def drop_baselines(self) -> None:
        self._baselines.clear()
        shelf, self.shelf = self.shelf, None
        if self.carrier is not None:
            self.carrier.settle()  # by the process that ends here
        if shelf is not None:
            with contextlib.suppress(Gone):
                shelf.clear()
            shelf.carrier.alone()
        executor, self._trusted_executor = self._trusted_executor, None
        if executor is not None:
            executor.close()

    # Roofs

    def peaks(self, given_gb_s: float | None, given_gflop_s: Mapping[str, float], dtype: str) -> Peaks:
        """What the daemon's ops reach on the device, of which what is not given is measured once. `dtype`: of arithmetic; empty: none."""
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
