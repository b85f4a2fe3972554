"""Profiles with cold caches: each execution works on other copies of the operands, so many of them that the first copy is out of
every cache when its turn comes again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from .._base import intervals
from .._base.errors import BadArgument
from .._base.results import Profile

GPU_CACHE = 128 << 20  # bytes: no GPU has a larger second-level cache
HOST_CACHE = 64 << 20  # where the system does not tell
SETS_MAX, BYTES_MAX = 512, 4 << 30  # of copies
AHEAD = 16  # executions that are under way


def host_cache() -> int:
    try:
        found = os.sysconf("SC_LEVEL3_CACHE_SIZE")
    except (ValueError, OSError):
        found = 0
    return found if found > 0 else HOST_CACHE


def copy_of(value: Any, array: Callable[[Any], Any]) -> Any:
    """A copy of the same layout in memory that the daemon uses in place. Numbers are no operands."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)
        made.copy_(value)
        return made
    if numpy is not None and isinstance(value, numpy.ndarray) and value.flags.c_contiguous:
        return array(value)
    if value is None or isinstance(value, (int, float, bool)):
        return value
    kind = type(value).__name__
    raise BadArgument(f'cache="cold" copies the operands: contiguous NumPy arrays and torch tensors, and no {kind}')


def sets_for(size: int, cache: int) -> int:
    """How many sets of operands of `size` bytes are needed. 1: each execution leaves nothing for the next one."""
    if not size or size >= 2 * cache:
        return 1
    wanted = -(-2 * cache // size) + 1
    if wanted > SETS_MAX or wanted * size > BYTES_MAX:
        raise BadArgument(f'cache="cold" would take {wanted} copies of {size} bytes: such operands are never cold')
    return wanted


def profile(
    warm: Callable[..., Profile], submit: Callable[[Sequence[Any]], Any], operands: Sequence[Any], array: Callable[[Any], Any], repeat: int
) -> Profile:  # fmt: skip
    """`warm(repeat)` profiles as ever, `submit(operands)` starts one timed execution on other operands."""
    first = warm(1)
    if first.timings.h2d_us is not None or first.timings.d2h_us is not None:
        raise BadArgument('cache="cold" is for tensors that lie on the device: these are copied to it each time')
    count = sets_for(first.bytes, GPU_CACHE if first.timings.host_us is None else host_cache())
    if count == 1:
        return warm(repeat)
    sets = [tuple(copy_of(value, array) for value in operands) for _ in range(count)]
    samples: list[float] = []
    waiting: list[Any] = []
    # All sets once before the first that counts: their memory becomes known to the daemon, and the first one cold.
    for turn in range(count + repeat):
        if len(waiting) == AHEAD:
            _take(waiting.pop(0), samples)
        waiting.append((turn >= count, submit(sets[turn % count])))
    for one in waiting:
        _take(one, samples)
    timings = first.timings.with_samples(tuple(samples))
    return replace(first, timings=timings, interval=intervals.of_median(samples))


def _take(one: tuple[bool, Any], samples: list[float]) -> None:
    counts, pending = one
    answer = pending.result()
    timings = answer[1] if isinstance(answer, tuple) else answer
    if counts and timings.exec_us is not None:
        samples.append(timings.exec_us)
