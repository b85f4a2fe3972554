"""What times of launches say together."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from .._companions import intervals
from ._verdict import Measured

# What launches that are looked at together may take besides their median's, since others work on the GPU, too; and what the first one
# may take besides, whose code may have to be loaded. It comes before all others and does not know where their memory will be.
DEFERRED, DEFERRED_US, FIRST_US = 1.1, 3.0, 10.0
AHEAD, AHEAD_US = 1.1, 3.0  # a warm launch may take so many times, and so much more, what a cold one takes


def adds_up(times: Sequence[Sequence[float]]) -> bool:
    """Whether launches, all of which were looked at together, took about as long as their median says, those of each kind."""
    return all(_adds_up(some[0], some[1:], median(some)) for some in times if some)


def _adds_up(first: float, others: Sequence[float], us: float) -> bool:
    return first <= DEFERRED * us + FIRST_US and sum(others) <= DEFERRED * len(others) * us + DEFERRED_US


def warm_is_no_longer(warm: Sequence[float], cold: Sequence[float]) -> bool:
    """Whether warm launches took no longer than the cold ones behind them: else they may have done their work."""
    return not warm or not cold or median(warm) <= AHEAD * median(cold) + AHEAD_US


def measured(samples: Sequence[float]) -> Measured | None:
    if not samples:
        return None
    low, high = intervals.of_median(samples) or (None, None)
    return Measured(median(samples), low, high, len(samples))
