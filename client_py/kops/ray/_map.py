"""What a cluster is asked for: `map`, a kernel, an op or a function over many blocks, and `judge_many`, verdicts of `kops.judge` on many
solutions; and how a worker does it.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

from .. import BadArgument, ConnectionLost, Kernel, KopsError, Param, Unsupported, WrongType
from .._companions import NAMES, OPS, Bound, Formula, Stopwatch
from ..interpret._expressions import evaluate
from ..judge import Judge, Limits, Solution, Task, Verdict
from . import _worker
from ._pool import Pool
from ._work import Item, Plan, Run, Work
from ._worker import WorkerClient, ray

LARGE = 1 << 16  # bytes of what all blocks share, from which on it is put into Ray's memory once


class _Job:
    """The kernel or function, as it travels."""

    def __init__(self, what: Any) -> None:
        self.what = what

    def caller(self, client: WorkerClient, on_gpu: bool) -> _OneAtATime:
        return _OneAtATime(caller(self.what, client, on_gpu))


class _OneAtATime:
    """In a worker: what is called, with the lock that its thread holds meanwhile."""

    def __init__(self, call: Call) -> None:
        self.lock = threading.Lock()
        self._call = call

    def __call__(self, arguments: Sequence[Any], named: Mapping[str, Any], work: Stopwatch) -> Any:
        with work:
            return self._call(arguments, named)


def _items(blocks: Iterable[Any], shared: Mapping[str, Any]) -> Iterator[Item]:
    for index, block in enumerate(blocks):
        if isinstance(block, Mapping):
            both = {**shared, **block}
            yield Item(index, list(both.values()), list(both))
        else:
            values = block if isinstance(block, tuple) else (block,)
            yield Item(index, [*values, *shared.values()], list(shared))


def _put(value: Any) -> Any:
    return ray.put(value) if getattr(value, "nbytes", 0) >= LARGE else value


def map(
    kern: Any, blocks: Iterable[Any], *, shared: Mapping[str, Any] | None = None, ordered: bool = False, errors: str = "raise",
    tries: int = 3, timeout: float | None = None, in_flight: int | None = None, progress: bool | None = None, total: int | None = None,
    trace: str | os.PathLike[str] | None = None, pool: Pool | None = None, **workers: Any,
) -> Run:  # fmt: skip
    """Calls `kern` with each block on the GPUs of a Ray cluster: an iterator of `(index, result)`, in the order in which they end.

        for index, y in kops.ray.map(scale, ((x, 2.0, x.size) for x in arrays)):
            ...

    `kern` is
    - a kernel of `kops.kernel`, `Client.kernel` and the like, also one with a geometry, `kern[grid, block]`. The results are the arrays
      that it writes. Those marked `out` are left out of the blocks where the signature has their sizes (`out float* y[n]`), or a block has
      arrays like them. Those that it reads and writes are copies;
    - one of `elementwise` or `reduce`, or the name of an op: "gemm";
    - a function of a client and of a block, `lambda k, x: k.add(k.square(x), 1.0)`. Its client works on the worker's GPU.
    Kernels and functions travel by value with what they refer to, functions of importable modules by name.

    A block is a tuple of arguments, a mapping of named ones, or one argument. Arrays are NumPy's or torch CPU tensors; an `ObjectRef`
    of `ray.put` stands for its array. `shared` are named arguments that all blocks have; large ones travel to each node once. `blocks`
    may be a generator: it is read as workers get free. Results that are large arrays lie in Ray's memory, and are read-only.

    Each item is in the results once. Where a worker, its node or the daemon there is lost, another worker does the item: it may then run
    twice, so it should have no effects but its result. An item at which `tries` workers were lost, or on which each of them worked for
    longer than `timeout` seconds, is given up: `GivenUp`. An item's own error is not tried again, but where a kernel faulted while those
    of other workers ran: then each of their items runs again, with its node for itself. The first error ends the work and is
    raised, with a note that names the item, or with `errors="return"` the error is that item's result.

    `ordered`: in the order of the blocks. `in_flight`: items that a worker has at one time; by default one, and more where they are
    short. `progress`: a bar on stderr, by default where that is a terminal; `total`, if `blocks` has no length. `trace`: a
    file for ui.perfetto.dev, `.json` or `.json.gz`, of what all nodes' daemons do meanwhile; `Run.trace` then says what is in it. `pool`
    are workers of an earlier `kops.ray.Pool`; else the call has its own, for which the other keywords are.
    Raises `kops.BadArgument` and `kops.WrongType` at once, other errors from the iterator.
    """
    check(kern)
    given = {name: _put(value) for name, value in (shared or {}).items()}
    if not all(isinstance(name, str) for name in given):
        raise BadArgument("shared is a mapping of arguments by their names", {"key": "shared"})
    if total is None and isinstance(blocks, Sized):
        total = len(blocks)
    title = kern if isinstance(kern, str) else getattr(kern, "name", None) or getattr(kern, "__name__", "map")
    plan = Plan(str(title), total, ordered, errors, tries, timeout, in_flight, progress, trace)
    return Run(Work(_Job(kern), _items(blocks, given), plan, pool, workers))


# In a worker

Call = Callable[[Sequence[Any], Mapping[str, Any]], Any]  # with positional and named arguments


def check(what: Any) -> None:
    """In the driver. Raises WrongType or BadArgument for what cannot be mapped."""
    if isinstance(what, str):
        if not what.isidentifier():
            raise BadArgument(f"{what!r} is no name of an op; there are {', '.join(OPS)}", {"key": "kern"})
        return
    if isinstance(what, (Kernel, Bound, Formula)) or callable(what):
        return
    raise WrongType(
        f"map takes a kernel, the name of an op, or a function of a client and a block, not {type(what).__name__}", {"key": "kern"}
    )


def caller(what: Any, client: WorkerClient, on_gpu: bool) -> Call:
    """A function that calls what is mapped. `on_gpu`: the worker has a GPU of its own."""
    if isinstance(what, str):
        return lambda arguments, named: client.run(what, *arguments, **named)
    if isinstance(what, (Kernel, Bound)):
        return _kernel(what, client, on_gpu)
    if isinstance(what, Formula):
        _check_gpu(what, client, on_gpu)
        what._device = None  # the driver's daemon's; in a worker it is the worker's own
        if _interprets(what, client, on_gpu):
            return lambda arguments, named: what.interpret(*arguments, **named)
        return lambda arguments, named: what(*arguments, **named)
    return lambda arguments, named: what(client, *arguments, **named)


def _has_gpu(client: WorkerClient) -> bool:
    return any(device.backend != "host" for device in client.devices)


def _interprets(kern: Any, client: WorkerClient, on_gpu: bool) -> bool:
    return kern.fallback is not None and not on_gpu and _has_gpu(client)


def _check_gpu(kern: Any, client: WorkerClient, on_gpu: bool) -> None:
    """Raises Unsupported for a kernel that would run on a GPU that is not the worker's."""
    if not on_gpu and kern.fallback is None and _has_gpu(client):
        raise Unsupported(
            f"{kern.name} needs a GPU, and Ray gave none to this worker: map with gpus=1, or declare the kernel with "
            'fallback="interpret", which runs it on the CPU'
        )


def _kernel(what: Kernel | Bound, client: WorkerClient, on_gpu: bool) -> Call:
    kernel = what._kernel if isinstance(what, Bound) else what
    _check_gpu(kernel, client, on_gpu)
    kernel.code.device = None
    launch = what.interpret if _interprets(kernel, client, on_gpu) else what

    def run(arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        values = bound(kernel, arguments, named)
        made = [_argument(kernel, param, values, client) for param in kernel.params]
        launch(*made)
        written = tuple(value for param, value in zip(kernel.params, made, strict=True) if param.kind in ("out", "inout"))
        return written[0] if len(written) == 1 else written or None

    return run


def bound(kernel: Kernel, arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The given arguments by the parameters' names. Those by position are for all parameters, or for those that are not `out`."""
    names = [param.name for param in kernel.params if param.name not in named]
    inputs = [param.name for param in kernel.params if param.name not in named and param.kind != "out"]
    taken = names if len(arguments) == len(names) else inputs
    if len(arguments) != len(taken):
        counts = f"{len(inputs)}" if len(inputs) == len(names) else f"{len(inputs)} or, with those that it only writes, {len(names)}"
        raise BadArgument(f"{kernel.name} takes {counts} arguments ({', '.join(names)}), and a block has {len(arguments)}")
    unknown = named.keys() - {param.name for param in kernel.params}
    if unknown:
        raise BadArgument(f"{kernel.name} has no parameter {sorted(unknown)[0]}; it has {', '.join(p.name for p in kernel.params)}")
    return {**dict(zip(taken, arguments, strict=True)), **named}


def _argument(kernel: Kernel, param: Param, values: Mapping[str, Any], client: WorkerClient) -> Any:
    """The launch's argument: an input as it came, memory of the worker's for an output."""
    value = values.get(param.name)
    if param.kind == "out":
        if value is None:
            return client.empty(*_declared(kernel, param, values, client))
        return client.empty(tuple(value.shape), value.dtype)
    if param.kind == "inout" and value is not None:
        return client.array(value)  # arrays that travelled are read-only
    return value


def _declared(kernel: Kernel, param: Param, values: Mapping[str, Any], client: WorkerClient) -> tuple[tuple[int, ...], Any]:
    """Shape and dtype of a result, by the kernel's signature and the other arguments."""
    declared = param.shape if param.shape is not None else (param.elements,)
    sizes = [size for size in declared if size is not None]
    if len(sizes) < len(declared):
        raise BadArgument(
            f"the shape of {kernel.name}'s result {param.name} is not known: declare its size in the signature "
            f"(`out {param.dtype}* {param.name}[n]`), or give an array like it in each block",
            {"key": param.name},
        )
    names: dict[str, Any] = {}
    if client.own_device is not None and client.own_device.backend != "host":
        names["multiprocessors"] = client.own_device.compute_units
    loaded, torch = sys.modules.get("torch"), None
    for other in kernel.params:
        value = values.get(other.name)
        if value is None:
            continue
        if other.is_tensor:
            names[other.name] = tuple(value.shape)
            torch = loaded if loaded is not None and isinstance(value, loaded.Tensor) else torch
        elif other.dtype[0] in "iu":
            names[other.name] = operator.index(value)
        else:
            names[other.name] = value
    shape = tuple(int(evaluate(size, names, f"{kernel.name}: {param.name}")) for size in sizes)
    return shape, param.dtype if torch is None else getattr(torch, NAMES[param.dtype])


# judge_many


TASKS_KEPT = 64  # by the driver, and by each worker
IN_FLIGHT = 4  # solutions of a worker: while the GPU judges one, others are compiled


class _Judging:
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
                task = self._tasks.setdefault(key, _worker.unpack(ray.get(packed[0])))
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
            found = self._known[id(task)] = task, str(next(self._numbers)), [ray.put(_worker.pack(task))]
            while len(self._known) > TASKS_KEPT:
                self._known.popitem(last=False)
        return found[1], found[2]


def _judged(tasks: Task | Iterable[Task], solutions: Iterable[Solution]) -> Iterator[Item]:
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
    return Run(Work(_Judging(how), _judged(tasks, solutions), plan, pool, workers))
