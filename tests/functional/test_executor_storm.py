"""Executors that are lost at random moments, while clients of all kinds check every result: they are killed, stopped or faulting, and
no client may be wrong; or kernels of two users fault and hang without end, and other users must notice nothing.

KOPS_TEST_KILL_SECONDS is how long the former takes for each way of isolation, two seconds without it. KOPS_TEST_KILL_SEED repeats
what the clients and the killer choose, which is printed.
"""

from __future__ import annotations

import os
import random
import select
import signal
import threading
import time
from collections import Counter as Tally

import pytest
from domains import Bystander, Domains, Plain
from gpu_machine import ILLEGAL_ADDRESS, N, only_with_the_standin
from killed import Scene
from storm import KINDS, Stormy, answers
from support import proc
from support.daemon import sanitized
from support.users import OPEN, as_root
from user_kernels import hostile_kernel, only_with_nvrtc

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


# ---- neighbours ----

FAULTS, HANGS = 25, 6
CULPRITS, NEIGHBOURS = (54001, 54002), (54003, 54004, 54005)
DAEMON_KIB = 2048  # by which the memory that only the daemon has may have grown after as many faults again


class Culprit(Bystander):
    """Its own work goes on, too, but what another connection of its user does may cost it that."""

    left = Tally({"fault": FAULTS, "hang": HANGS})
    lock = threading.Lock()

    def __init__(self, machine: Domains, seed: int, uid: int) -> None:
        self.rng = random.Random(seed)
        super().__init__(machine, uid)

    def prepare(self, machine: Domains) -> None:
        self.memory = Plain(self.connection, machine.gpu, 2 * N)
        entries = {"fault": "fault_kernel", "hang": "spin_forever"}
        self.kernels = {kind: hostile_kernel(self.connection, entry) for kind, entry in entries.items()}

    def next(self) -> str:
        with self.lock:
            kinds = [kind for kind, n in self.left.items() if n > 0]
            kind = self.rng.choice(kinds) if kinds else ""
            self.left[kind] -= bool(kind)
            return kind

    def round(self) -> None:
        kind = self.next()
        if not kind:
            self.stopping = True
            return
        # Not all hangs have a deadline: those end because others wait.
        more = {"deadline_ms": self.rng.randint(1, 50)} if kind == "hang" and self.rng.random() < 0.9 else {}
        bad = self.connection.request("launch", {"kernel": self.kernels[kind], "args": [self.memory.tensor(N)], **more})
        self.memory.data[:] = 3
        square = {"op": "square", "in": [self.memory.tensor(N)], "out": [self.memory.tensor(N, N)], "stream": 1}
        good = self.connection.request("run", square)
        error = self.connection.reply_error(bad)
        # On a machine that has much else to do, a fault may take so long to be seen that the kernel is taken for an endless one.
        wanted = {"fault": {"device_fault", "job_timeout"}, "hang": {"deadline_exceeded", "job_timeout"}}[kind]
        assert error.code in wanted | {"device_lost", "device_fault"}, error
        reply = self.connection.reply(good)
        if reply.error is None:
            assert (self.memory.data[N:] == 9).all()
        else:
            assert reply.error["code"] == "device_lost", reply.error


def own_memory(scene: Scene) -> int:
    """KiB that only the daemon has. Pages that it shares with others count once they are touched, and so grow to a bound."""
    return proc.status(scene.daemon.pid, "RssAnon")


def attack(scene: Scene, seed: int) -> None:
    Culprit.left = Tally({"fault": FAULTS, "hang": HANGS})
    culprits = [Culprit(scene.machine, seed + i, uid) for i, uid in enumerate(CULPRITS * 2)]
    for one in culprits:
        one.thread.join()
        one.check()
        one.close()


@as_root
@pytest.mark.parametrize("isolate", ["user", "connection"])
def test_neighbours(isolate: str) -> None:
    # On a machine that has much else to do, a neighbour's own kernel may take more than the usual two seconds.
    scene = Scene(quiet=True, isolate=isolate, maximum=24, spares=1, more="longest_s = 6\n" + OPEN)
    print(f"KOPS_TEST_KILL_SEED={SEED}")
    others: list[Stormy] = []
    try:
        for i, kind in enumerate(KINDS[:8]):
            others.append(kind(scene.machine, SEED + i, uid=NEIGHBOURS[i % len(NEIGHBOURS)], spared=True))
        attack(scene, SEED)
        before, memory = scene.holdings(), own_memory(scene)
        attack(scene, SEED + 1)
        scene.settle(before)
        for one in others:
            one.goes_on()
        assert sanitized() or own_memory(scene) < memory + DAEMON_KIB, f"{memory} KiB grew to {own_memory(scene)}"
    finally:
        for one in others:
            one.close()
    for one in others:
        one.check()
    counts = scene.watcher.connection.call("stats")["executor_counts"]
    assert counts["faults"] + counts["jobs_ended"] >= FAULTS, counts
    print(f"{isolate}: {counts}, {sum(one.rounds for one in others)} rounds of others, {memory} to {own_memory(scene)} KiB")
    scene.close()
