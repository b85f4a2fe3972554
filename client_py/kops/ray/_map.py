"""`map`: a kernel, an op or a function over many blocks."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

from .. import BadArgument
from .._companions import Stopwatch
from . import _apply
from ._client import WorkerClient
from ._plan import Item, Plan
from ._pool import Pool
from ._ray import ray
from ._run import Run
from ._work import Work

LARGE = 1 << 16  # bytes of what all blocks share, from which on it is put into Ray's memory once


class _Job:
    """What is called, as it travels."""

    def __init__(self, what: Any) -> None:
        self.what = what

    def caller(self, client: WorkerClient, on_gpu: bool) -> _OneAtATime:
        return _OneAtATime(_apply.caller(self.what, client, on_gpu))


class _OneAtATime:
    """In a worker: what is called, with the lock that its thread holds meanwhile."""

    def __init__(self, call: _apply.Call) -> None:
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
    _apply.check(kern)
    given = {name: _put(value) for name, value in (shared or {}).items()}
    if not all(isinstance(name, str) for name in given):
        raise BadArgument("shared is a mapping of arguments by their names", {"key": "shared"})
    if total is None and isinstance(blocks, Sized):
        total = len(blocks)
    title = kern if isinstance(kern, str) else getattr(kern, "name", None) or getattr(kern, "__name__", "map")
    plan = Plan(str(title), total, ordered, errors, tries, timeout, in_flight, progress, trace)
    return Run(Work(_Job(kern), _items(blocks, given), plan, pool, workers))
