"""What times of launches say together."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from .._base import intervals
from ._verdict import Measured

__all__ = ["adds_up", "measured"]

# What launches that are looked at together may take besides their median's: code that is loaded, others' work.
DEFERRED, DEFERRED_US = 1.1, 10.0


def adds_up(times: Sequence[Sequence[float | None]]) -> bool:
    """Whether launches, all of which were looked at together, took about as long as their median says, those of each kind."""
    known = [[us for us in some if us is not None] for some in times]
    return all(sum(some) <= DEFERRED * len(some) * median(some) + DEFERRED_US for some in known if some)


def measured(samples: Sequence[float]) -> Measured | None:
    if not samples:
        return None
    low, high = intervals.of_median(samples) or (None, None)
    return Measured(median(samples), low, high, len(samples))
