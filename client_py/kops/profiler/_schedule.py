"""Which steps of a program are recorded."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from .. import BadArgument


class ProfilerAction(Enum):
    """What a profiler does in a step."""

    NONE = 0
    WARMUP = 1  # records, and throws away
    RECORD = 2
    RECORD_AND_SAVE = 3  # the last step of a cycle


def schedule(*, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0) -> Callable[[int], ProfilerAction]:
    """As `torch.profiler.schedule`: after `skip_first` steps, cycles of `wait` steps without, `warmup` steps recorded in vain,
    `active` steps recorded. `repeat` cycles, 0: for ever."""
    for name, value in {"wait": wait, "warmup": warmup, "repeat": repeat, "skip_first": skip_first}.items():
        if value < 0:
            raise BadArgument(f"{name}={value}: a number of steps is not negative")
    if active < 1:
        raise BadArgument(f"active={active}: at least one step of a cycle is recorded")
    length = wait + warmup + active

    def action(step: int) -> ProfilerAction:
        if step < skip_first:
            return ProfilerAction.NONE
        cycle, at = divmod(step - skip_first, length)
        if repeat and cycle >= repeat:
            return ProfilerAction.NONE
        if at < wait:
            return ProfilerAction.NONE
        if at < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD_AND_SAVE if at == length - 1 else ProfilerAction.RECORD

    return action


def action_of(value: Any) -> ProfilerAction:
    """What a schedule said; torch's schedules say torch's actions."""
    name = getattr(value, "name", "")
    if name not in ProfilerAction.__members__:
        raise BadArgument(f"schedule has said {value!r}: it says a ProfilerAction of each step; kops.profiler.schedule() makes one")
    return ProfilerAction[name]


def always(_step: int) -> ProfilerAction:
    return ProfilerAction.RECORD
