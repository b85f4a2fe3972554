"""Every allocation and every system call on the way of a request fails once, in turn.

A sample of the points by default; KOPS_FAULTS=all takes every one, KOPS_FAULTS=5 every fifth.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable

import pytest
from faults import ALL, ALWAYS, FaultyDaemon, describe, points, settled
from scenario import fresh_client, play

ROUNDS = 3  # before anything is counted: what is made once and kept is there then
SPINS = (0, 50) if ALL else (0,)


class Tally:
    def __init__(self) -> None:
        self.points, self.silent, self.by_kind = 0, 0, Counter[str]()

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {n}" for kind, n in self.by_kind.items())
        return f"{self.points} points ({kinds}); {self.silent} were not reached"


def warm(daemon: FaultyDaemon) -> dict[str, int]:
    """What a round asks for, at most."""
    most: Counter[str] = Counter()
    for _ in range(ROUNDS):
        play(daemon)
        fresh_client(daemon)
    for _ in range(ROUNDS):
        daemon.faults.count()
        play(daemon)
        most |= Counter(daemon.faults.disarm())
    return most


def one_point(daemon: FaultyDaemon, before: dict[str, int], kind: str, nth: int, how: int, lasts: int) -> bool:
    what = describe(kind, nth, how)
    daemon.faults.arm(kind, nth, how, lasts)
    try:
        play(daemon)
        fired = daemon.faults.fired
        daemon.faults.disarm()
        fresh_client(daemon)
        settled(daemon, before)
    except BaseException:
        print(f"at {what}, lasting {lasts}; the log ends with:\n{daemon.log()[-3000:]}")
        raise
    assert daemon.running(), what
    return fired > 0


@pytest.mark.parametrize("spin_us", SPINS)
@pytest.mark.parametrize("lasts", [1, 3, ALWAYS])
def test_every_point(lasts: int, spin_us: int, record_property: Callable[[str, object], None]) -> None:
    """Each leaves the daemon serving, every answer right, and nothing behind. With 3 the next two calls fail as well,
    with ALWAYS all of them until the round is over."""
    tally, began = Tally(), time.monotonic()
    with FaultyDaemon("--spin-us", str(spin_us)) as daemon:
        counts = warm(daemon)
        with daemon.connect() as settling:
            assert settling.alive()
        before = daemon.holdings()
        settled(daemon, before)
        for kind, nth, how in points(counts, offset=lasts % 17):
            tally.points += 1
            tally.by_kind[kind] += 1
            tally.silent += not one_point(daemon, before, kind, nth, how, lasts)
    record_property("tally", str(tally))
    print(f"lasting {lasts}, spin {spin_us}: {tally}; {time.monotonic() - began:.0f} s")
    assert tally.points > (1000 if ALL else 20)
    assert tally.silent < tally.points / 4
    if "KOPS_FAULTS_REPORT" in os.environ:
        with open(os.environ["KOPS_FAULTS_REPORT"], "a", encoding="utf-8") as report:
            report.write(f"host, lasting {lasts}, spin {spin_us}: {tally}; {time.monotonic() - began:.0f} s\n")
