"""Profiles with cold caches: each execution works on other copies of the operands, so many of them that the first copy is out of
every cache when its turn comes again."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from .._base.conditions import Conditions, Reading
from .._base.errors import BadArgument
from .._base.intervals import Goal
from .._base.results import Profile
from .._tensors.device_array import Array

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


def is_cold(cache: str) -> bool:
    """Whether the keyword asks for cold caches."""
    if cache not in ("warm", "cold"):
        raise BadArgument(f'cache={cache!r}: "warm" or "cold"')
    return cache == "cold"


def copy_of(value: Any, array: Callable[..., Any]) -> Any:
    """A copy of the same layout in memory that the daemon uses in place. Numbers are no operands."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)
        made.copy_(value)
        return made
    if numpy is not None and isinstance(value, numpy.ndarray) and value.flags.c_contiguous:
        return array(value)
    if value is None or isinstance(value, (int, float, bool)) or (numpy is not None and isinstance(value, numpy.generic)):
        return value
    if isinstance(value, Array) and value.contiguous:
        made = array(value, device=value.device)
        if isinstance(made, Array):
            return made
        made.close()
        raise BadArgument('cache="cold" with asyncio copies NumPy arrays and torch tensors, and no Array: use the other client')
    kind = type(value).__name__
    raise BadArgument(f'cache="cold" copies the operands: contiguous NumPy arrays, kops.Arrays and torch tensors, and no {kind}')


def sets_for(size: int, cache: int) -> int:
    """How many sets of operands of `size` bytes are needed. 1: each execution leaves nothing for the next one."""
    if not size or size >= 2 * cache:
        return 1
    wanted = -(-2 * cache // size) + 1
    if wanted > SETS_MAX or wanted * size > BYTES_MAX:
        raise BadArgument(f'cache="cold" would take {wanted} copies of {size} bytes: such operands are never cold')
    return wanted


class Rotation:
    """Which operands are next, and the times so far. `first` is a profile of one execution on the operands as they are."""

    def __init__(
        self, first: Profile, operands: Sequence[Any], array: Callable[[Any], Any], repeat: int, goal: Goal
    ) -> None:  # fmt: skip
        if first.timings.h2d_us is not None or first.timings.d2h_us is not None:
            raise BadArgument('cache="cold" is for tensors that lie on the device: these are copied to it each time')
        self.first, self.repeat, self.goal = first, repeat, goal
        cache = GPU_CACHE if first.timings.host_us is None else host_cache()
        self.count = sets_for(first.bytes, cache)
        # Without copies the last execution has filled the caches with other parts of the same operands.
        self.sets = [tuple(copy_of(value, array) for value in operands) for _ in range(self.count)] if self.count > 1 else []
        self.rounds: list[list[float]] = []
        self._turn = 0
        goal.begin()

    def round(self) -> Iterator[tuple[bool, tuple[Any, ...]]]:
        """The executions of the next round: whether each counts, and its operands."""
        # All sets once before the first that counts: their memory becomes known to the daemon, and the first one cold.
        unseen = 0 if self.rounds else self.count
        self.rounds.append([])
        for turn in range(unseen + self.repeat):
            yield turn >= unseen, self.sets[self._turn % self.count]
            self._turn += 1

    def took(self, counts: bool, answer: Any) -> None:
        timings = answer[1] if isinstance(answer, tuple) else answer
        if counts and timings.exec_us is not None:
            self.rounds[-1].append(timings.exec_us)

    @property
    def over(self) -> bool:
        return self.goal.over(self.rounds)

    def profile(self, later: Reading | None) -> Profile:
        samples = tuple(chain.from_iterable(self.rounds))
        earlier = self.first.conditions
        conditions = Conditions(earlier.before, later) if earlier is not None and later is not None else earlier
        timings, interval = self.first.timings.with_samples(samples), self.goal.interval(self.rounds)
        return replace(self.first, timings=timings, interval=interval, until=self.goal.until, conditions=conditions)


def profile(
    warm: Callable[[int, Goal], Profile], submit: Callable[..., Any], read: Callable[[str], Reading], operands: Sequence[Any],
    array: Callable[[Any], Any], repeat: int, goal: Goal,
) -> Profile:  # fmt: skip
    """`warm(repeat, goal)` profiles as ever, `submit(*operands)` starts one timed execution, `read(device)` reads conditions."""
    first = warm(1, Goal())
    rotation = Rotation(first, operands, array, repeat, goal)
    if rotation.count == 1:
        return warm(repeat, goal)
    while not rotation.over:
        waiting: deque[tuple[bool, Any]] = deque()
        for counts, one in rotation.round():
            if len(waiting) == AHEAD:
                earlier, pending = waiting.popleft()
                rotation.took(earlier, pending.result())
            waiting.append((counts, submit(*one)))
        for counts, pending in waiting:
            rotation.took(counts, pending.result())
    return rotation.profile(read(first.device) if first.conditions is not None else None)


async def profile_async(
    warm: Callable[[int, Goal], Awaitable[Profile]], run: Callable[..., Any], read: Callable[[str], Awaitable[Reading]],
    operands: Sequence[Any], array: Callable[[Any], Any], repeat: int, goal: Goal,
) -> Profile:  # fmt: skip
    """The same with `await`: `run(*operands)` is a coroutine of one timed execution."""
    first = await warm(1, Goal())
    rotation = Rotation(first, operands, array, repeat, goal)
    if rotation.count == 1:
        return await warm(repeat, goal)
    waiting: deque[tuple[bool, asyncio.Task[Any]]] = deque()
    try:
        while not rotation.over:
            for counts, one in rotation.round():
                if len(waiting) == AHEAD:
                    rotation.took(waiting[0][0], await waiting[0][1])
                    waiting.popleft()
                waiting.append((counts, asyncio.ensure_future(run(*one))))
            while waiting:
                rotation.took(waiting[0][0], await waiting[0][1])
                waiting.popleft()
    finally:
        for _, task in waiting:
            task.cancel()
    return rotation.profile(await read(first.device) if first.conditions is not None else None)
