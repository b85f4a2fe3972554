"""`judge_many`: verdicts of `kops.judge` on many solutions."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

from .. import BadArgument, ConnectionLost, KopsError
from .._companions import Stopwatch
from ..judge import Judge, Limits, Solution, Task, Verdict
from . import _travel
from ._items import Item, Plan
from ._pool import Pool
from ._travel import ray
from ._work import Run, Work
from ._worker import WorkerClient

TASKS_KEPT = 64  # by the driver, and by each worker
IN_FLIGHT = 4  # solutions of a worker: while the GPU judges one, others are compiled


class _Job:
    """The options of a judge, as they travel."""

    def __init__(self, how: Mapping[str, Any]) -> None:
        self.how = dict(how)

    def caller(self, client: WorkerClient, on_gpu: bool) -> _Court:
        return _Court(client, on_gpu, self.how)


class _Court:
    """In a worker: a judge for its GPU, or one that interprets, and the tasks that it knows. Called by several threads."""

    lock = contextlib.nullcontext()  # the judge has a queue
    _closed = False

    def __init__(self, client: WorkerClient, on_gpu: bool, how: Mapping[str, Any]) -> None:
        self._client = client
        if on_gpu and client.own_device is not None:
            self._judge = Judge(client.path, device=client.own_device.uuid, how="gpu", **how)
        else:
            self._judge = Judge(how="interpreter", **how)
        self._tasks: OrderedDict[str, Task] = OrderedDict()

    def __call__(self, arguments: Sequence[Any], named: Mapping[str, Any], work: Stopwatch) -> Verdict:
        key, packed, solution = arguments
        task = self._tasks.get(key)
        if task is None:
            with work:
                task = self._tasks.setdefault(key, _travel.unpack(ray.get(packed[0])))
            while len(self._tasks) > TASKS_KEPT:
                self._tasks.popitem(last=False)
        try:
            verdict = self._judge.submit(task, solution, work).result()
        except Exception as error:  # a fault of the judge's own, which is no reason to judge no others
            verdict = Verdict("no_verdict", f"the judge failed: {type(error).__name__}: {error}", task.name, solution.name)
        if verdict.kind == "no_verdict":
            self._check_daemon(verdict)
        return verdict

    def _check_daemon(self, verdict: Verdict) -> None:
        """Raises ConnectionLost where the daemon has gone: another worker may judge. Where it has, all that the judge had is cancelled, and
        the next daemon may answer already."""
        if self._closed:
            raise ConnectionLost("the judge's daemon went away")
        try:
            self._client.ping()
        except KopsError as error:
            raise ConnectionLost(f"{verdict.text} ({error})") from None

    def close(self) -> None:
        self._closed = True
        self._judge.close(cancel=True)


class _Tasks:
    """In the driver: each task is packed once, and put into Ray's memory."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[Task, str, list[Any]]] = OrderedDict()  # the task itself, so that its id is no other's
        self._numbers = itertools.count()

    def put(self, task: Task) -> tuple[str, list[Any]]:
        found = self._known.get(id(task))
        if found is None:
            found = self._known[id(task)] = task, str(next(self._numbers)), [ray.put(_travel.pack(task))]
            while len(self._known) > TASKS_KEPT:
                self._known.popitem(last=False)
        return found[1], found[2]


def _items(tasks: Task | Iterable[Task], solutions: Iterable[Solution]) -> Iterator[Item]:
    known = _Tasks()
    each = itertools.repeat(tasks) if isinstance(tasks, Task) else iter(tasks)
    for index, solution in enumerate(solutions):
        task = next(each, None)
        if not isinstance(task, Task) or not isinstance(solution, Solution):
            what = "there are fewer tasks than solutions" if task is None else f"got {type(task).__name__}, {type(solution).__name__}"
            raise BadArgument(f"judge_many takes a Task, or one for each solution, and solutions: {what}", {"key": "tasks"})
        yield Item(index, [*known.put(task), solution], note=task.name)


def judge_many(
    tasks: Task | Iterable[Task], solutions: Iterable[Solution], *, strict: bool = False, deadline: float = 1.0,
    interpreted_deadline: float = 20.0, task_timeout: float = 600.0, time: bool = True, limits: Limits | None = None,
    counters: bool | None = None, peak_gb_s: float | None = None, seed: int | None = None, ordered: bool = False, tries: int = 3,
    timeout: float | None = None, in_flight: int = IN_FLIGHT, progress: bool | None = None, total: int | None = None,
    trace: str | os.PathLike[str] | None = None, pool: Pool | None = None, **workers: Any,
) -> Run:  # fmt: skip
    """Judges solutions on the GPUs of a Ray cluster, each GPU with a judge of its own: an iterator of `(index, verdict)`, in the order in
    which they end. `index` is the solution's.

        for index, verdict in kops.ray.judge_many(task, solutions):
            print(index, verdict.kind)

    `tasks` is the task of all solutions, or an iterable with one for each. A task travels once to each worker, with its functions, and
    a worker keeps its inputs and expected results; so give the same object again. Workers without a GPU interpret, without times.

    `strict`, `deadline`, `interpreted_deadline`, `task_timeout`, `time`, `limits`, `counters`, `peak_gb_s` and `seed` are those of
    `kops.judge.Judge`. The other options are those of `kops.ray.map`; with `gpus` below 1 judges that share a GPU would time each other.
    Times of different GPUs are comparable where the GPUs are alike: `verdict.device` says on which it was judged.

    Each solution has one verdict, whatever is lost meanwhile. One at which `tries` workers were lost has "no_verdict", with the reason.
    Errors of the judge as a whole, such as a daemon that gives strangers' kernels no process of their own, are raised.
    """
    how = {
        "strict": strict, "deadline": deadline, "interpreted_deadline": interpreted_deadline, "task_timeout": task_timeout,
        "time": time, "limits": limits, "counters": counters, "peak_gb_s": peak_gb_s, "seed": seed,
    }  # fmt: skip
    if total is None and isinstance(solutions, Sized):
        total = len(solutions)
    no_verdict = lambda item, error: Verdict("no_verdict", str(error), item.note, item.values[2].name)  # noqa: E731
    plan = Plan("judge", total, ordered, "raise", tries, timeout, in_flight, progress, trace, no_verdict)
    return Run(Work(_Job(how), _items(tasks, solutions), plan, pool, workers))
