"""What tuning says: candidates with their times, and choices that were made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import table
from .results import known


@dataclass(frozen=True)
class Candidate:
    """What can run an op. `us` is the median time of an execution in microseconds; None: not measured. `state` is "measured",
    "slower" (left behind after one measurement), "left_out" (not measured in this tuning, for want of time) or "unfit" (it cannot
    run this)."""

    variant: str
    what: str
    state: str
    us: float | None = None


@dataclass(frozen=True)
class Tuned:
    """The result of `Client.tune`. `best` runs from now on, for every client; `before` ran until now, and is `best` where nothing
    is faster beyond noise; `usual` runs where nothing was tuned. `noise` is the wider of the spreads of `best` and `before`, as a
    part of their time; `took_us` how long the reply took. `machine` says for which kind of GPU, driver and library it holds. `tried` is
    how many of the candidates tunings of this problem have tried so far: the next one goes on with the others (None: an older daemon).
    `goes_on`: there was no time to measure before the reply. It is done after it."""

    device: str
    machine: str
    problem: str
    candidates: tuple[Candidate, ...]
    best: Candidate
    before: Candidate
    usual: Candidate
    noise: float
    took_us: float
    tried: int | None = None
    goes_on: bool = False

    @property
    def gain(self) -> float | None:
        """How many times faster `best` is than `usual`; None where the usual one cannot run."""
        return self.usual.us / self.best.us if self.usual.us and self.best.us else None

    def __str__(self) -> str:
        timed = sorted((c for c in self.candidates if c.us is not None), key=lambda c: c.us or 0.0)
        rows = [
            [c.what, table.number(c.us), c.state, " ".join(n for n in ("best", "before", "usual") if getattr(self, n) is c)]
            for c in timed
        ]
        head = f"{self.problem}: {self.best.what}"
        if self.gain is not None:
            head += f", {self.gain:.3g} × as fast as without tuning"
        if self.tried is not None and self.tried < len(self.candidates):
            head += f", of {self.tried} of {len(self.candidates)} candidates so far"
        if self.goes_on:
            head += " (still measuring)"
        return "\n".join([head, table.layout([["candidate", "us", "state", ""], *rows], "lrll")])


@dataclass(frozen=True)
class Choice:
    """A choice that was made. `us` is its time then, `usual_us` that of what would run without it; None: that cannot run. `at`:
    when, in seconds since 1970. It is the best of `tried` of `candidates`; None: an older daemon has chosen it."""

    machine: str
    problem: str
    variant: str
    what: str
    us: float
    usual: str
    noise: float
    at: float
    usual_us: float | None = None
    tried: int | None = None
    candidates: int | None = None


def tuned_of(reply: Mapping[str, Any]) -> Tuned:
    candidates = tuple(Candidate(**known(Candidate, c)) for c in reply["candidates"])
    members = known(Tuned, reply)
    chosen = {name: candidates[members[name]] for name in ("best", "before", "usual")}
    return Tuned(**{**members, "candidates": candidates, **chosen})


def choice_of(reply: Mapping[str, Any]) -> Choice:
    return Choice(**known(Choice, reply))
