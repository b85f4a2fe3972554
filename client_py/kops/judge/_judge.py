"""The queue: solutions come from any thread, are prepared beside the GPU, and judged one after the other on it."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import Any

from .. import BadArgument, Client, Device, KopsError
from .._companions import Stopwatch
from ._carrier import gpu_of
from ._draws import Draw, Pool, half_of_memory
from ._gpu import compile_ahead
from ._host import HostRunner
from ._machine import Machine
from ._runner import DRAWS, Job, verdict_of
from ._solution import Solution
from ._task import Task
from ._timed import SLOW, TIMED_DRAWS, Found, Limits, dtype_of, flops_of, prepare, timed, usual
from ._verdict import BaselineFault, Busy, Fault, Gone, HeldBack, Refused, Stop, TaskFault, Verdict
from ._worker import missing

WAITING_MAX = 256  # most solutions without a verdict; the next `submit` waits
MORE_INTERPRETED = 4  # launches in one module state, beyond the steps of a case
TIMEOUT = 120.0  # seconds for a request of the judge's own
HELD_BACK_MAX = 7200.0  # longest wait of a solution while the daemon takes no kernels of this user, because others faulted
BUSY_MAX = 600.0  # longest wait of a solution for a GPU that has other work
BASELINES_MAX = 1024  # most baselines that are known not to run
TIMED_FEWEST, TIMED_BYTES = 8, 512 << 20  # draws of the timed case
CREW = 3, 12  # least and most threads that prepare copies and compare results; between the two, three for every four cores
AHEAD = 16  # solutions whose draws are in memory, and which wait for the device
TASK_TIMEOUT = 600.0
LOCATE_SECONDS = {"faulted": 20.0, "hangs": 2.0}  # for one launch in the interpreter; an endless one takes all of it
HOWS = (None, "gpu", "interpreter")


class _Stages:
    """Threads that take jobs from one queue. Daemon threads: a generator that never ends does not hold up the end of the program."""

    def __init__(self, name: str, count: int, work: Any) -> None:
        self.queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._work, self._name = work, name
        self.threads: list[threading.Thread] = []
        for _ in range(count):
            self.more()

    def more(self) -> None:
        """Adds a thread, at first or since another one is stuck."""
        thread = threading.Thread(target=self._run, name=f"kops-judge-{self._name}-{len(self.threads)}", daemon=True)
        self.threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while (job := self.queue.get()) is not None:
            self._work(job)

    def end(self, seconds: float | None) -> None:
        for _ in self.threads:
            self.queue.put(None)
        for thread in self.threads:
            thread.join(seconds)  # a thread that a task's Python holds does not end


class Judge:
    """A queue of solutions for one device. A context manager; leaving it waits for the verdicts, or where an exception leaves it,
    gives up those that have not begun. Thread-safe.

    `client` or `socket` says which daemon; the judge makes connections of its own. `device`: an index or UUID of `client.devices`, by
    default the first GPU. `how`: "gpu", "interpreter" (needs no daemon), or None: the GPU where the daemon has one.
    `strict`: a process of its own on the GPU for each solution. `deadline`: seconds for the launches of a solution together, on one
    draw, and so many times that where several draws are asked for at once; `interpreted_deadline` for one launch in the interpreter.
    `time`: whether right solutions are timed, within `limits`. `counters`: whether the device's counters are read, too, which takes
    about a second; None: where no other solution waits. `peak_gb_s`: the bandwidth that is the roof, and `peak_gflop_s` that of
    arithmetic, 10^9 operations a second by dtype ("f32") for tasks with `flops`; measured where they are not given. `seed` makes the
    draws the same each time: for tests, since they are no secret then. `timeout`: seconds for a request to the daemon; `task_timeout`:
    for a task's own Python, which makes the draws of a solution. `draw_bytes`: of this machine's memory that the draws of one solution may
    take; None: half of what is available when the judge begins. Where a task needs more, its solutions have "no_verdict".
    Raises `Unsupported` where the daemon gives strangers' kernels no process of their own.
    """

    def __init__(
        self, socket: str | os.PathLike[str] | None = None, *, client: Client | None = None, device: Any = None, strict: bool = False,
        deadline: float = 1.0, interpreted_deadline: float = 20.0, time: bool = True, limits: Limits | None = None,
        counters: bool | None = None, peak_gb_s: float | None = None, peak_gflop_s: Mapping[str, float] | None = None,
        seed: int | None = None, how: str | None = None, timeout: float = TIMEOUT, task_timeout: float = TASK_TIMEOUT,
        draw_bytes: int | None = None,
    ) -> None:  # fmt: skip
        if how not in HOWS:
            raise BadArgument(f'how={how!r}: "gpu", "interpreter" or None')
        if not deadline > 0 or not interpreted_deadline > 0:
            raise BadArgument("a deadline is more than 0 seconds")
        if draw_bytes is not None and not draw_bytes > 0:
            raise BadArgument(f"draw_bytes={draw_bytes!r}: a number of bytes, or None")
        self.strict, self.deadline, self.interpreted_deadline, self.seed, self._timed = strict, deadline, interpreted_deadline, seed, time
        self._timeout, self.task_timeout = timeout, task_timeout
        self._path = socket if client is None else client._path
        self.limits, self.counters, self.peak_gb_s, self.peak_gflop_s = limits or Limits(), counters, peak_gb_s, dict(peak_gflop_s or {})
        self.spent: dict[str, float] = {}  # seconds on the GPU's side by part, over all solutions that had a verdict there
        self._pool = Pool(bound=half_of_memory() if draw_bytes is None else draw_bytes)
        self._trusted: Client | None = None
        self._gpu: Device | None = None
        self._machine: Machine | None = None
        cores = len(os.sched_getaffinity(0))
        crew = max(CREW[0], min(3 * cores // 4, CREW[1]))
        self._crew = ThreadPoolExecutor(crew, "kops-judge-crew")
        self._drawing = ThreadPoolExecutor(max(1, crew // 2), "kops-judge-draws")  # not the crew's: a slow reference would hold it up
        if how != "interpreter":
            self._connect(device, how == "gpu")
        self.how = "interpreter" if self._gpu is None else "gpu"
        self._room = threading.BoundedSemaphore(WAITING_MAX)
        self._lock = threading.Lock()
        self._closed = False
        self._ending = threading.Event()
        self._jobs: set[Job] = set()
        self._parked: dict[object, deque[Job]] = {}  # jobs of a task whose draws are being made
        self._held: set[object] = set()  # keys of tasks whose Python does not return
        self._bad_baselines: dict[object, str] = {}  # by the tasks' keys; used by the lane only
        self._ahead = threading.Semaphore(AHEAD)
        self._preparing = _Stages("prepare", max(4, min(cores, 8)), self._prepare)
        self._beside = _Stages("beside", max(2, min(cores, 8)), lambda call: call())
        self._locating = _Stages("locate", max(2, min(cores // 2, 8)), lambda call: call())  # endless kernels delay no compiling
        self._lane = _Stages("lane", 1 if self._gpu is not None else max(1, min(cores, 16)), self._judge)

    def _connect(self, device: Any, needed: bool) -> None:
        self._trusted = Client(self._path, timeout=self._timeout)
        try:
            self._gpu = gpu_of(self._trusted, device)
            if self._gpu is None and needed:
                raise BadArgument('this daemon has no such GPU: how="interpreter" needs none')
            if self._gpu is not None:
                beside = lambda call: self._beside.queue.put(call)  # noqa: E731
                self._machine = Machine(
                    self._path, self._timeout, self._trusted, self._gpu, self._crew, self.strict, self.deadline, beside
                )  # fmt: skip
        except BaseException:
            self._trusted.close()
            raise

    # For callers

    def submit(self, task: Task, solution: Solution, work: Stopwatch | None = None) -> Future[Verdict]:
        """The verdict, later. Waits while very many are under way. The future fails only where the judge itself has a fault. `work` runs
        while the judge works on this solution, and not while that waits for others."""
        if not isinstance(task, Task) or not isinstance(solution, Solution):
            raise BadArgument(f"submit takes a Task and a Solution, not {type(task).__name__} and {type(solution).__name__}")
        self._room.acquire()
        job = Job(task, solution, Future(), work=work or Stopwatch())
        with self._lock:
            if self._closed:
                self._room.release()
                raise BadArgument("the judge is closed")
            self._jobs.add(job)
        job.future.add_done_callback(lambda _: self._over(job))
        self._preparing.queue.put(job)
        future: Future[Verdict] = job.future
        return future

    def judge(self, task: Task, solution: Solution) -> Verdict:
        return self.submit(task, solution).result()

    def judge_many(self, pairs: Iterable[tuple[Task, Solution]]) -> Iterator[tuple[int, Verdict]]:
        """The verdicts with the numbers of their pairs, in the order in which they end. `pairs` may be endless: it is read as there is
        room."""
        waiting: dict[Future[Verdict], int] = {}
        for index, (task, solution) in enumerate(pairs):
            waiting[self.submit(task, solution)] = index
            done, _ = wait(waiting, timeout=0) if len(waiting) < WAITING_MAX // 2 else wait(waiting, return_when=FIRST_COMPLETED)
            yield from ((waiting.pop(one), one.result()) for one in done)
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            yield from ((waiting.pop(one), one.result()) for one in done)

    def close(self, cancel: bool = False) -> None:
        """Waits for the verdicts; with `cancel` the futures of those that have not begun are cancelled. Idempotent."""
        with self._lock:
            already, self._closed = self._closed, True
            jobs = list(self._jobs)
        if already:
            return
        if cancel:
            self._ending.set()
            for job in jobs:
                job.future.cancel()
        wait([job.future for job in jobs if not job.future.cancelled()])
        for stages in (self._preparing, self._lane, self._beside, self._locating):
            stages.end(1.0)
        if self._machine is not None:
            self._machine.let_go()
        for crew in (self._crew, self._drawing):
            crew.shutdown(wait=False, cancel_futures=True)
        if self._trusted is not None:
            self._trusted.close()

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        self.close(cancel=kind is not None)

    def __repr__(self) -> str:
        return f"<kops.judge.Judge, {self.how}, {len(self._jobs)} under way>"

    # The stages of a job

    def _over(self, job: Job) -> None:
        with self._lock:
            self._jobs.discard(job)
            ahead, job.ahead = job.ahead, False
        self._room.release()
        if ahead:
            self._ahead.release()

    def _finish(self, job: Job, verdict: Verdict) -> None:
        with contextlib.suppress(InvalidStateError):  # cancelled, or given up
            job.future.set_result(verdict)

    def _dropped(self, job: Job) -> bool:
        """Whether nobody waits for the job any more."""
        if job.future.cancelled():
            with contextlib.suppress(RuntimeError):
                job.future.set_running_or_notify_cancel()
        return bool(job.future.done())

    def _guarded(self, job: Job, call: Any) -> None:
        """A fault of the judge's own must not leave a caller waiting."""
        try:
            with job.work:
                call()
        except BaseException as error:
            with contextlib.suppress(InvalidStateError):
                job.future.set_exception(error)

    def _prepare(self, job: Job) -> None:
        """One solution of a task at a time: the others find its draws made."""
        if self._dropped(job):
            return
        key = job.task.key
        with self._lock:
            stuck, waits = key in self._held, key in self._parked
            if not stuck and waits:
                self._parked[key].append(job)
                return
            if not stuck:
                waiting = self._parked[key] = deque()
        if stuck:
            self._finish(job, job.verdict("no_verdict", self._too_slow(job.task)))
            return
        if not self._go_ahead(job):
            self._unpark(key)
            return
        timer = threading.Timer(self.task_timeout, self._stuck, (job, waiting))
        timer.daemon = True
        timer.start()
        try:
            self._guarded(job, lambda: self._drawn(job))
        finally:
            timer.cancel()
            self._unpark(key)

    def _unpark(self, key: object) -> None:
        with self._lock:
            self._held.discard(key)
            waiting = self._parked.pop(key, deque())
        for one in waiting:
            self._preparing.queue.put(one)

    def _stuck(self, job: Job, parked: deque[Job]) -> None:
        """The task's Python has not come back, and may never: another thread takes the place of the one that it holds, and those
        who wait are told."""
        text = self._too_slow(job.task)
        with self._lock:
            if self._parked.get(job.task.key) is not parked:
                return  # the task's Python has come back just now
            self._held.add(job.task.key)
            waiting = [job, *parked]
            parked.clear()
        for one in waiting:
            self._finish(one, one.verdict("no_verdict", text))
        self._preparing.more()

    def _too_slow(self, task: Task) -> str:
        return f"task {task.name}: its generator of inputs and its reference take longer than {self.task_timeout:g} s"

    def _go_ahead(self, job: Job) -> bool:
        """Waits until there is room for its draws. False: nobody waits for the job any more."""
        self._ahead.acquire()
        with self._lock:
            if job.future.done():
                self._ahead.release()
                return False
            job.ahead = True
        return True

    def _drawn(self, job: Job) -> None:
        task = job.task
        interpreted = self._gpu is None
        more = MORE_INTERPRETED if interpreted else 0
        measured = self._timed and not interpreted
        warnings: list[str] = []
        try:
            job.solution.check()
            rest, others = {}, 0
            for case in task.small_cases if interpreted else task.all_cases:
                needed = DRAWS + more + 1 + (TIMED_FEWEST if measured and case == task.timed_case else 0)
                drawn = self._pool.take(task, case, DRAWS + more, self.seed, needed, others)
                others += needed * drawn.draws[0].nbytes
                job.draws[case], rest[case] = drawn.draws[:DRAWS], (drawn.variant, *drawn.draws[DRAWS:])
                warnings += drawn.warnings
            if measured:
                self._draw_timed(job)
            job.more = rest
        except Refused as error:
            self._finish(job, job.verdict("refused", error.message))
        except TaskFault as error:
            self._finish(job, job.verdict("no_verdict", error.message))
        else:
            job.warnings = tuple(warnings)
            if interpreted:
                self._lane.queue.put(job)
            else:
                self._beside.queue.put(lambda: self._guarded(job, lambda: self._compile(job)))

    def _draw_timed(self, job: Job) -> None:
        """Takes the draws beyond those that a solution is checked with."""
        task, one = job.task, job.draws[job.task.timed_case][0]
        count = max(TIMED_FEWEST, min(TIMED_DRAWS, TIMED_BYTES // max(one.nbytes, 1)))
        job.flops, job.dtype = flops_of(task, one), dtype_of(one)
        job.timed = self._pool.take(task, task.timed_case, DRAWS + count, self.seed).draws[DRAWS:]
        if self.seed is None:
            job.kept, job.keep = partial(self._pool.variants, task), partial(self._pool.keep, task)
            # Draws for most of its times, so that solutions that wait for the GPU need not wait for a reference.
            self._pool.make_variants(task, usual(one.nbytes) - count, SLOW, self._drawing)

    def _compile(self, job: Job) -> None:
        """Beside the GPU: on the solution's own connection the code is there then."""
        assert self._trusted is not None and self._gpu is not None
        if self._dropped(job):
            return
        try:
            job.allocates = compile_ahead(self._trusted, job.solution, self._gpu)
        except Stop as stop:
            self._finish(job, job.verdict(stop.kind, stop.text, **stop.members))
            return
        except Gone:
            pass  # the lane finds out
        shelf = None if self._machine is None else self._machine.shelf
        if shelf is not None and job.timed:
            shelf.make_images((*job.kept(), *job.timed))
        self._lane.queue.put(job)

    def _judge(self, job: Job) -> None:
        if self._dropped(job) or not job.future.set_running_or_notify_cancel():
            return
        if self._gpu is None:
            make = lambda: HostRunner(job.solution, self.interpreted_deadline)  # noqa: E731
            self._guarded(job, lambda: self._finish(job, verdict_of(job, make)[0]))
        else:
            self._guarded(job, lambda: self._on_gpu(job))

    def _on_gpu(self, job: Job) -> None:
        assert self._trusted is not None and self._gpu is not None and self._machine is not None
        machine = self._machine
        why, losses, waited, busy = "", 0, 0.0, 0.0
        while losses < 2 and waited < HELD_BACK_MAX and busy < BUSY_MAX:
            begun = time.monotonic()
            try:
                make = lambda: machine.runner(job.solution, len(self._jobs) - 1, job.allocates)  # noqa: E731
                verdict, dirty = verdict_of(job, make, *((self._time(job), partial(prepare, job)) if self._timed else ()))
            except HeldBack as error:
                why = str(error)
                waited += error.seconds
                with job.work.paused():
                    ended = self._ending.wait(error.seconds)
                if ended:
                    break
                continue
            except Busy as error:
                why = str(error)
                busy += time.monotonic() - begun
                if self._ending.is_set():
                    break
                continue
            except Gone as error:
                machine.let_go()
                why, losses = str(error), losses + 1
                with job.work.paused(), contextlib.suppress(KopsError):
                    self._trusted.ping()  # waits for a daemon that comes back
                continue
            for part, seconds in job.spent.items():
                self.spent[part] = self.spent.get(part, 0.0) + seconds
            if waited:
                said = f"it waited {waited:.0f} s, since the daemon refuses kernels after some that faulted: set executors.faults = 0"
                verdict = replace(verdict, warnings=(*verdict.warnings, said))
            if dirty or self.strict or job.allocates:
                machine.drop()
            if verdict.kind in ("faulted", "hangs"):
                self._locating.queue.put(partial(self._guarded, job, partial(self._locate, job, verdict)))
            else:
                self._finish(job, verdict)
            return
        if losses:
            what = "the daemon went away twice while it was judged"
        elif busy:
            what = f"the GPU had other work for {busy:.0f} s, so that it could not begin"
        else:
            what = "the daemon takes no kernels of this user"
        self._finish(job, job.verdict("no_verdict", f"{what}: {why}", how="gpu", device=self._gpu.name))

    def _locate(self, job: Job, verdict: Verdict) -> None:
        try:
            draw = self._pool.take(job.task, job.task.small_cases[0], DRAWS, self.seed).draws[0]
            verdict = located(job, verdict, draw, self.interpreted_deadline)
        except (TaskFault, Refused, Gone):
            pass
        self._finish(job, verdict)

    def _time(self, job: Job) -> Any:
        def measure(runner: Any) -> Found:
            assert self._machine is not None
            machine = self._machine
            if (known := self._bad_baselines.get(job.task.key)) is not None:
                raise TaskFault(known)
            try:
                peaks = machine.peaks(self.peak_gb_s, self.peak_gflop_s, job.dtype if job.flops else "")
                counters = len(self._jobs) < 2 if self.counters is None else self.counters
                return timed(job, runner, machine.trusted, machine.baseline(job.task), self.limits, peaks, counters, machine.quiet)
            except TaskFault as error:
                machine.drop_baselines()
                if isinstance(error, BaselineFault):
                    self._remember(job.task, error)
                raise

        return measure

    def _remember(self, task: Task, error: BaselineFault) -> None:
        if len(self._bad_baselines) >= BASELINES_MAX:
            self._bad_baselines.clear()
        self._bad_baselines[task.key] = error.message


def located(job: Job, verdict: Verdict, draw: Draw, deadline: float) -> Verdict:
    """A fault on a GPU with its place, if the interpreter finds one in a small case: block, thread and line."""
    if missing():
        return verdict  # a stranger's code is not run here
    again = Job(job.task, job.solution, None, draws={draw.case: (draw, draw, draw)})
    found, _ = verdict_of(again, lambda: HostRunner(job.solution, min(LOCATE_SECONDS[verdict.kind], deadline)))
    if found.kind not in ("faulted", "hangs") or found.fault is None or verdict.fault is None:
        return verdict
    place: Fault = replace(found.fault, driver=verdict.fault.driver, kernel=found.fault.kernel or verdict.fault.kernel)
    return replace(verdict, fault=place, text=f"{verdict.text}. The interpreter, in the case {draw.case}: {place.text}")


def judge(task: Task, solution: Solution, client: Client | None = None, **how: Any) -> Verdict:
    """One verdict, by a judge that is made for it. The keywords are those of `Judge`."""
    with Judge(client=client, **how) as made:
        return made.judge(task, solution)
