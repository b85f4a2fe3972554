"""Executors that are killed, stopped or faulting at random moments, while clients of all kinds check every result.

KOPS_TEST_KILL_SECONDS is how long it takes for each way of isolation, two seconds without it. KOPS_TEST_KILL_SEED repeats
what the clients and the killer choose, which is printed.
"""

from __future__ import annotations

import os
import random
import select
import signal
import time
from collections import Counter as Tally

import pytest
from domains import Domains
from gpu_machine import ILLEGAL_ADDRESS, only_with_the_standin
from killed import Scene
from storm import KINDS, Stormy, answers
from support import proc
from user_kernels import only_with_nvrtc

pytestmark = [only_with_the_standin, only_with_nvrtc]

SECONDS = float(os.environ.get("KOPS_TEST_KILL_SECONDS", "2"))
SEED = int(os.environ.get("KOPS_TEST_KILL_SEED", str(random.SystemRandom().randrange(1 << 32))))


class Killer:
    def __init__(self, machine: Domains, rng: random.Random) -> None:
        self.machine, self.rng, self.done = machine, rng, Tally[str]()

    def strike(self) -> None:
        pids = sorted(self.machine.executors())
        if not pids:
            return
        pid = self.rng.choice(pids)
        how = self.rng.choice(["kill", "kill", "kill all", "stop", "stop and kill", "fault"])
        self.done[how] += 1
        if how == "fault":
            self.machine.control.fail("kernel", ILLEGAL_ADDRESS, nth=self.rng.randint(1, 5), pid=pid)
            return
        for victim in pids if how == "kill all" else [pid]:
            self.send(victim, signal.SIGSTOP if how.startswith("stop") else signal.SIGKILL)
        if how.startswith("stop"):
            self.pause(0.03)
            self.send(pid, signal.SIGCONT if how == "stop" else signal.SIGKILL)

    def send(self, pid: int, number: int) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def pause(self, most: float) -> None:
        select.select([], [], [], self.rng.random() * most)


def storm(machine: Domains, clients: list[Stormy], killer: Killer, seconds: float) -> None:
    """A job is begun anew three times at most, so everybody gets ahead between two strikes."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        killer.pause(0.1)
        killer.strike()
        for client in clients:
            client.goes_on(1)
        assert machine.daemon.running(), machine.daemon.log()


@pytest.mark.parametrize("isolate", ["user", "connection", "none"])
def test_storm(isolate: str) -> None:
    print(f"KOPS_TEST_KILL_SEED={SEED}")
    scene = Scene(isolate=isolate, spares=1, maximum=16, quiet=True)
    killer = Killer(scene.machine, random.Random(SEED))
    clients: list[Stormy] = []
    try:
        for i, kind in enumerate(KINDS):
            clients.append(kind(scene.machine, SEED + i))
        storm(scene.machine, clients, killer, SECONDS / 3)
        holdings = scene.holdings()
        storm(scene.machine, clients, killer, SECONDS)
    finally:
        for client in clients:
            client.close()
    for client in clients:
        client.check()
    scene.settle(holdings)
    assert proc.zombies(scene.daemon.pid) == 0
    print(f"{isolate}: {sum(c.rounds for c in clients)} rounds, {dict(killer.done)}, {dict(answers)}")
    scene.close()
