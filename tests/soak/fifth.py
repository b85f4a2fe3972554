"""The user that works while others do their worst: adds, and now and then what else a client does, every answer checked.

Single-threaded; runs in a process of its own."""

from __future__ import annotations

import random
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import kops
from kopsbench.neighbour.worker import Adder, Found
from worker import Worker

TURNS = 5
BURST, PAUSE_S = 20, 0.005  # calls in a row, and what it thinks in between
OTHER_CALLS = 0.01  # of the bursts
KEPT_FAILURES = 20


@dataclass
class Tally:
    durations: array = field(default_factory=lambda: array("f"))  # of adds, in microseconds
    slowest_us: float = 0.0  # of a connection with other calls
    calls: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    failures: list[str] = field(default_factory=list)

    def fail(self, what: str) -> None:
        if len(self.failures) < KEPT_FAILURES:
            self.failures.append(what[:300])


class Fifth:
    def __init__(self, path: str, patience: float, seed: int) -> None:
        self.path, self.patience = path, patience
        self.random = random.Random(seed)
        self.tally = Tally()
        self.adder = Adder(path, patience)

    def other(self) -> bool:
        """Some of a soak worker's turns, on a connection that is made for them."""
        start = time.perf_counter_ns()
        try:
            with kops.connect(self.path, timeout=self.patience) as k:
                worker = Worker(k, self.random.getrandbits(32))
                while worker.requests < TURNS:
                    worker.turn()
        except SystemExit as wrong:
            self.tally.wrong += 1
            self.tally.fail(str(wrong))
        except kops.KopsError as error:
            self.tally.fail(f"{type(error).__name__}: {error}")
            return not isinstance(error, kops.Timeout)
        self.tally.calls["others"] += TURNS
        self.tally.slowest_us = max(self.tally.slowest_us, (time.perf_counter_ns() - start) / 1000)
        return True

    def burst(self) -> bool:
        found = Found()
        good = all(self.adder.call(found) for _ in range(BURST))
        self.tally.durations.extend(found.samples)
        self.tally.calls["add"] += len(found.samples)
        self.tally.wrong += found.wrong
        for failure in found.failures:
            self.tally.fail(f"add: {failure}")
        return good

    def work(self, link: Connection) -> Tally:
        """Until it is told to end, or gets no answer any more."""
        while not link.poll(PAUSE_S):
            if not self.burst() or (self.random.random() < OTHER_CALLS and not self.other()):
                break
        return self.tally


def as_fifth(path: str, patience: float, seed: int, link: Connection) -> None:
    fifth = Fifth(path, patience, seed)
    link.send("ready")
    link.send(fifth.work(link))
