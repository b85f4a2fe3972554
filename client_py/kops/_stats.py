"""What `stats()` answers, for type checkers: plain dictionaries at run time. A daemon of another version may leave keys out or
add some."""

from __future__ import annotations

from typing import TypedDict


class Spread(TypedDict, total=False):
    """A distribution in microseconds."""

    min: float
    mean: float
    p50: float
    p90: float
    p99: float
    p999: float
    max: float


class OpStats(TypedDict, total=False):
    """One op, or kernel of a user's, on one device with one variant, dtype and shapes (inputs, then outputs).

    `count` executions; `queue_us` from ready to run until given to the device, `exec_us` device time of one execution,
    `total_us` from the request's decoding to the reply's encoding.
    """

    op: str
    device: str
    variant: str
    dtype: str
    shapes: list[list[int]]
    count: int
    errors: int
    queue_us: Spread
    exec_us: Spread
    total_us: Spread


class MappingStats(TypedDict, total=False):
    """Memory of a client's process that the daemon has mapped: `size` in bytes, `users` buffers that refer to it, `idle_s`
    seconds without a use."""

    kind: str
    device: str
    size: int
    open: bool
    users: int
    pids: list[int]
    idle_s: float


class Stats(TypedDict, total=False):
    """Counters and timings of a daemon since its start or the last reset."""

    uptime_s: float
    counters: dict[str, int]
    ops: list[OpStats]
    mappings: list[MappingStats]
    kernels: dict[str, int]
