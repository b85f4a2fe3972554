"""Every allocation and every system call on the way of a request fails once, in turn.

A sample of the points by default; KOPS_FAULTS=all takes every one, KOPS_FAULTS=17 every seventeenth.
"""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest
from faults import ALL, ALWAYS, FaultyDaemon, describe, may_last, points, settled
from scenario import fresh_client, play
from support import proc, raw

FAILURES_MAX = 20
ROUNDS = 3  # before anything is counted: what is made once and kept is there then
SPINS = (0, 50) if ALL else (0,)


class Tally:
    def __init__(self) -> None:
        self.points, self.silent, self.by_kind = 0, 0, Counter[str]()
        self.failures: list[str] = []

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {n}" for kind, n in self.by_kind.items())
        return f"{self.points} points ({kinds}); {self.silent} were not reached; {len(self.failures)} failed"


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
    daemon.faults.arm(kind, nth, how, lasts)
    play(daemon)
    fired = daemon.faults.fired
    daemon.faults.disarm()
    fresh_client(daemon)
    settled(daemon, before)
    assert daemon.running()
    return fired > 0


def every_point(daemon: FaultyDaemon, left: list[tuple[str, int, int]], sockets: int, lasts: int, tally: Tally) -> None:
    """Until one fails, or none is left. `sockets`: the daemon's without clients."""
    proc.eventually(
        lambda: proc.fds(daemon.pid)["socket"] == sockets and not proc.maps(daemon.pid), "no client is left"
    )
    before = daemon.holdings()
    while left:
        kind, nth, how = left.pop()
        tally.points += 1
        tally.by_kind[kind] += 1
        try:
            tally.silent += not one_point(daemon, before, kind, nth, how, lasts)
        except (AssertionError, OSError, raw.RpcError, raw.Closed) as error:
            tally.failures.append(f"{describe(kind, nth, how)}: {error!r}; the log: {daemon.log()[-2000:]}")
            return


@pytest.mark.parametrize("spin_us", SPINS)
@pytest.mark.parametrize("lasts", [1, 3, ALWAYS])
def test_every_point(lasts: int, spin_us: int) -> None:
    """Each leaves the daemon serving, every answer right, and nothing behind. With 3 the next two calls fail as well,
    with ALWAYS all of them until the round is over."""
    tally, began = Tally(), time.monotonic()
    left: list[tuple[str, int, int]] | None = None
    while left is None or (left and len(tally.failures) < FAILURES_MAX):
        with FaultyDaemon("--spin-us", str(spin_us)) as daemon:
            sockets = proc.fds(daemon.pid)["socket"]
            counts = warm(daemon)
            if left is None:
                left = [p for p in points(counts, lasts % 17) if lasts != ALWAYS or may_last(p[0], p[2])]
            known = len(tally.failures)
            every_point(daemon, left, sockets, lasts, tally)
            daemon.faults.disarm()
            if len(tally.failures) > known and daemon.process:
                daemon.process.kill()  # whatever state it is in
                daemon.process.wait()
                daemon.log_path.unlink()
                daemon.start()
    report = f"host, lasting {lasts}, spin {spin_us}: {tally}; {time.monotonic() - began:.0f} s"
    print(report)
    if "KOPS_FAULTS_REPORT" in os.environ:
        with open(os.environ["KOPS_FAULTS_REPORT"], "a", encoding="utf-8") as file:
            file.write(report + "\n")
    assert not tally.failures, "\n\n".join(tally.failures)
    assert tally.points > (150 if ALL else 5)
    assert tally.silent < tally.points / 4
