"""The answer of `stats()`, for type checkers: plain dictionaries at run time. A daemon of another version may leave keys out or
add some. A key of this version is left out only for a time that was not measured, as `device` of the host's memory, and of an
executor that serves nobody."""

from __future__ import annotations

from typing import TypedDict


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


class OpStats(_Measured):
    """One op, or kernel of a user's, on one device with one variant, dtype and shapes (inputs, then outputs).

    `count` executions; `queue_us` from ready to run until given to the device, `exec_us` device time of one execution,
    `total_us` from the request's decoding to the reply's encoding. One that was never measured is not there.
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
    connection: int
    client_pid: int


class ExecutorStats(_Domain):
    """A process that does GPU work for the daemon. `state` is "starting", "spare" (ready, and serves nobody yet), "serving"
    or "ending"; `jobs` it has now; `device_us` is the time in which it had work on a GPU, in the `uptime_s` since its start.

    `domain` is whose jobs it runs: "common", "user" (`uid`) or "connection" (its number; while it is open also the client's
    `uid` and process, `client_pid`).
    """

    pid: int
    state: str
    jobs: int
    uptime_s: float
    device_us: float


class Stats(TypedDict):
    """Counters and timings of a daemon since its start or the last reset."""

    uptime_s: float
    counters: dict[str, int]
    ops: list[OpStats]
    mappings: list[MappingStats]
    mappings_all: int
    kernels: dict[str, int]
    executors: list[ExecutorStats]
    executor_counts: dict[str, int]
