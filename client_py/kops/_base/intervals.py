"""Measured times: confidence intervals that assume no distribution, by the order of the samples (David and Nagaraja, Order Statistics,
7.1), and how long something has been worked on.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from .errors import BadArgument

Z = 1.96  # 95 %
ROUNDS = 8  # least number of rounds, where an interval is wanted
SAMPLES_MOST = 200_000
SECONDS_MOST = 30.0  # limit where the caller names none
FEWEST = 6  # least number of samples for an interval of 95 %


def median(samples: Iterable[float]) -> float:
    """As that of `statistics`, which takes milliseconds to import."""
    ordered = sorted(samples)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def of_median(samples: Sequence[float]) -> tuple[float, float] | None:
    """Where the median lies, with 95 % confidence, if the samples are independent. None: they are too few."""
    n = len(samples)
    if n < FEWEST:
        return None
    ordered = sorted(samples)
    below = max(0, math.floor((n - Z * math.sqrt(n)) / 2) - 1)
    return ordered[below], ordered[n - 1 - below]


def of_rounds(rounds: Sequence[Sequence[float]]) -> tuple[float, float] | None:
    """The same for samples that were taken in rounds, which may differ among themselves: by clocks, heat, other clients. The interval
    that all samples give, widened to the one of the rounds' medians."""
    everything = [sample for one in rounds for sample in one]
    intervals = [of_median(everything), of_median([median(one) for one in rounds if one])]
    known = [interval for interval in intervals if interval is not None]
    if not known:
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def width(interval: tuple[float, float] | None, middle: float) -> float:
    """The interval's half width as a part of the median."""
    if interval is None or not middle:
        return math.inf
    return max(interval[1] - middle, middle - interval[0]) / middle


class Goal:
    """How well the median is to be known, `until`, and for how many seconds that is tried, `at_most`. Without `until` one round is
    enough."""

    def __init__(self, until: float | None = None, at_most: float = SECONDS_MOST) -> None:
        if until is not None and not 0 < until < 1:
            raise BadArgument(f"until={until}: the wanted half width of the interval as a part of the median, such as 0.01")
        if not at_most > 0:
            raise BadArgument(f"at_most={at_most}: more than 0 seconds; math.inf for no limit")
        self.until, self.at_most = until, at_most
        self._end = math.inf

    def begin(self) -> None:
        self._end = time.monotonic() + self.at_most

    def over(self, rounds: Sequence[Sequence[float]]) -> bool:
        """The interval is narrow enough, or the time is over, or there are as many samples as there may be; or executions have no
        times. A round that has begun is done whole."""
        if not rounds:
            return False
        if self.until is None or not rounds[-1] or time.monotonic() >= self._end or sum(map(len, rounds)) >= SAMPLES_MOST:
            return True
        return len(rounds) >= ROUNDS and width(of_rounds(rounds), median(chain.from_iterable(rounds))) <= self.until

    def interval(self, rounds: Sequence[Sequence[float]]) -> tuple[float, float] | None:
        return of_median(tuple(chain.from_iterable(rounds))) if self.until is None else of_rounds(rounds)


def percentile(ordered: Sequence[float], p: float) -> float:
    """The nearest rank, as the daemon has it."""
    return ordered[max(math.ceil(p * len(ordered)), 1) - 1]


class Stopwatch:
    """A context manager: it runs while a `with` block of any thread is open. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = 0  # blocks
        self._since = 0.0  # when the first of them was opened
        self._over = 0.0  # seconds until then

    @property
    def seconds(self) -> float:
        with self._lock:
            return self._over + (time.monotonic() - self._since if self._open else 0.0)

    def __enter__(self) -> Stopwatch:
        with self._lock:
            if not self._open:
                self._since = time.monotonic()
            self._open += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._open -= 1
            if not self._open:
                self._over += time.monotonic() - self._since

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """In a block: meanwhile it waits for others."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()
