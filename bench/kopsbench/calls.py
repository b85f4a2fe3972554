"""Calls through the Python client whose GPU or host time is what counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def profile(
    client: Any,
    op: str,
    inputs: Sequence[Any],
    out: Any,
    *,
    repeat: int,
    ret_variant: list[str] | None = None,
    **attributes: Any,
) -> list[float]:
    """Kernel times in microseconds of `repeat` executions in one request, by the daemon's own clock."""
    found = client.profile(op, *inputs, out=out, warmup=0, repeat=repeat, **attributes)
    if ret_variant is not None:
        ret_variant.append(found.variant)
    return list(found.samples)


def pipelined(
    client: Any,
    op: str,
    calls: Iterable[tuple[Any, ...]],
    *,
    ret_variant: list[str],
    timing: bool | str = True,
    ret_timers: set[str] | None = None,
    **attributes: Any,
) -> list[float]:
    """Kernel times in microseconds of requests that are all sent before the first reply is waited for, so that the
    daemon can queue them back to back. A call is its inputs and, last, its output. `timing`: "exact" is CUPTI's records;
    `ret_timers` says who told the times."""
    pending = [client.submit(op, *call[:-1], out=call[-1], timing=timing, **attributes) for call in calls]
    timings = [one.result()[1] for one in pending]
    ret_variant.append(timings[-1].variant)
    if ret_timers is not None:
        ret_timers.update(one.timer for one in timings)
    return [timing.exec_us for timing in timings]
