"""The answer of `stats()`: dictionaries, the outermost one with a table. A daemon of another version may leave keys out or
add some. A key of this version is left out only for a time that was not measured, as `operations` of a user kernel, as
`device` of the host's memory, and of an executor that serves nobody."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from . import stats_table


class Spread(TypedDict):
    """A distribution in microseconds."""

    min: float
    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    max: float


class _Measured(TypedDict, total=False):
    bytes: int
    operations: int
    queue_us: Spread
    exec_us: Spread
    total_us: Spread


class _OfAnIdentity(TypedDict, total=False):
    identity: str


class OpStats(_Measured, _OfAnIdentity):
    """One op, or kernel of a user's, on one device with one variant, dtype and shapes (inputs, then outputs).

    `count` executions, each with `bytes` of its tensors' elements and, where the op declares them, floating-point
    `operations`; `queue_us` from ready to run until given to the device, `exec_us`
    device time of one execution, `total_us` from the request's decoding to the reply's encoding. One that was never
    measured is not there. `uid` is the user's; where there is an `identity`, it is a number of the daemon's own for that.
    """

    op: str
    uid: int
    device: str
    variant: str
    dtype: str
    shapes: list[list[int]]
    count: int
    errors: int


class _OnADevice(TypedDict, total=False):
    device: str


class MappingStats(_OnADevice):
    """Memory of a client's process that the daemon has mapped: `size` in bytes, `users` buffers that refer to it, `idle_s`
    seconds without a use."""

    kind: str
    size: int
    open: bool
    users: int
    pids: list[int]
    idle_s: float


class _Domain(TypedDict, total=False):
    domain: str
    uid: int
    identity: str
    connection: int
    client_pid: int


class ExecutorStats(_Domain):
    """A process that does GPU work for the daemon. `state` is "starting", "spare" (ready, and serves nobody yet), "serving"
    or "ending"; `jobs` it has now; `device_us` is the time in which it had work on a GPU, in the `uptime_s` since its start.

    `domain` is whose jobs it runs: "common", "user" (`uid`) or "connection" (its number; while it is open also the client's
    `uid` and process, `client_pid`). Of an `identity` the `uid` is a number of the daemon's own.
    """

    pid: int
    state: str
    jobs: int
    uptime_s: float
    device_us: float


class Stats(dict[str, Any]):
    """Counters and timings of a daemon since its start or the last reset: a dictionary. `print()` shows the timings as a
    table, `table()` makes other tables of them."""

    if TYPE_CHECKING:

        @overload
        def __getitem__(self, key: Literal["uptime_s"]) -> float: ...
        @overload
        def __getitem__(self, key: Literal["counters", "kernels", "executor_counts"]) -> dict[str, int]: ...
        @overload
        def __getitem__(self, key: Literal["ops"]) -> list[OpStats]: ...
        @overload
        def __getitem__(self, key: Literal["mappings"]) -> list[MappingStats]: ...
        @overload
        def __getitem__(self, key: Literal["mappings_all"]) -> int: ...
        @overload
        def __getitem__(self, key: Literal["executors"]) -> list[ExecutorStats]: ...
        @overload
        def __getitem__(self, key: str) -> Any: ...
        def __getitem__(self, key: str) -> Any: ...

    def table(
        self,
        sort_by: str = "total",
        group_by: str | Sequence[str] = (),
        limit: int | None = 20,
        ops: str | Iterable[str] | None = None,
    ) -> str:
        """The timings as text, as `kopsctl stats` prints them; empty where there are none.

        `sort_by` is a column: op, shapes, dtype, variant, device, user, calls, errors, total, share, mean, p50, p99, gb_s,
        gflop_s, queue_p99 or total_p99. `group_by` makes one line of the rows that agree in the named ones of the first six.
        `limit` lines at most; None: all. `ops` are the names of the ops to show; None: all.
        """
        rows = self.get("ops", [])
        if ops is not None:
            names = {ops} if isinstance(ops, str) else set(ops)
            rows = [row for row in rows if row.get("op") in names]
        return stats_table.text(rows, sort_by, group_by, limit)

    def __str__(self) -> str:
        counters = self.get("counters", {})
        counts = [f"{name} {counters[name]}" for name in ("requests", "jobs", "errors", "connections") if name in counters]
        head = ", ".join([f"up {self.get('uptime_s', 0):.0f} s", *counts])
        return f"{head}\n{self.table()}".rstrip()
