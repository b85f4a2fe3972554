"""Two users whose kernels fault and hang without end, beside others who must notice nothing: they work at random, know what should come
of it, and nothing of theirs may fail, be wrong or be done twice. (The model test kills executors at random.)"""

from __future__ import annotations

import random
import threading
from collections import Counter as Tally
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from domains import Bystander, Counter, Domains, Plain
from gpu_machine import N, only_with_the_standin
from killed import Scene
from support import memfd, proc
from support.daemon import sanitized
from support.raw import tensor
from support.users import OPEN, as_root
from test_ordered import Timelines
from user_kernels import custom_kernel, hostile_kernel, only_with_nvrtc

pytestmark = [only_with_the_standin, only_with_nvrtc, as_root]

FAULTS, HANGS = 25, 6
CULPRITS, NEIGHBOURS = (54001, 54002), (54003, 54004, 54005)
DAEMON_KIB = 2048  # by which the memory that only the daemon has may have grown after as many faults again
ATTACKS_MAX = 5  # what leaks grows with each; what a busy machine needs at most, once
M, SLOTS = 64, 6  # elements of a slot of memory


class Dealer(Bystander):
    """Random ops, some of them in place, some overwriting what others have read; with kernels of its own or without; in
    device memory or, staged, in shared memory; one by one, or as sequences."""

    def __init__(self, machine: Domains, seed: int, uid: int, kernels: bool = False, shared: bool = False) -> None:
        self.machine, self.rng = machine, random.Random(seed)
        self.kernels, self.shared = kernels, shared
        super().__init__(machine, uid)

    def prepare(self, machine: Domains) -> None:
        if self.shared:
            self.file = memfd.Shared(4 * SLOTS * M)
            data, self.buffer = self.file.view(np.float32, SLOTS * M), self.connection.register(self.file)
        else:
            self.memory = Plain(self.connection, machine.gpu, SLOTS * M)
            data, self.buffer = self.memory.data, self.memory.buffer
        self.slots = data.reshape(SLOTS, M)
        self.double = custom_kernel(self.connection) if self.kernels else 0

    def view(self, slot: int) -> dict[str, Any]:
        return tensor(self.buffer, [M], offset=4 * M * slot)

    def deal(self) -> np.ndarray:
        """New numbers in all slots; what should be there after the ops."""
        self.slots[:] = expected = np.array([[self.rng.randint(-3, 3) for _ in range(M)] for _ in range(SLOTS)], np.float32)
        return expected

    def op(self, expected: np.ndarray) -> tuple[str, list[int], int]:
        """Its name, the slots that it reads and the one that it writes; `expected` is what comes of it."""
        name = self.rng.choice(["add", "add", "square", "double"] if self.kernels else ["add", "add", "square"])
        inputs = [self.rng.randrange(SLOTS) for _ in range(2 if name == "add" else 1)]
        out = self.rng.choice([i for i in range(SLOTS) if name != "double" or i not in inputs])
        a, b = expected[inputs[0]], expected[inputs[-1]]
        with np.errstate(all="ignore"):
            expected[out] = a + b if name == "add" else a * a if name == "square" else 2 * a
        return name, inputs, out

    def send(self, op: tuple[str, list[int], int], options: dict[str, Any]) -> int:
        name, inputs, out = op
        views = [self.view(i) for i in inputs]
        if name == "double":
            return self.connection.request("launch", {"kernel": self.double, "args": [self.view(out), *views, M], **options})
        run = {"op": name, "in": views, "out": [self.view(out)], "device": self.machine.gpu}
        return self.connection.request("run", {**run, **options})

    def send_all(self, ops: list[tuple[str, list[int], int]], options: dict[str, Any]) -> int:
        """As a sequence."""
        wire = [
            {"kernel": self.double, "args": [out, *inputs, M]} if name == "double" else {"op": name, "in": inputs, "out": [out]}
            for name, inputs, out in ops
        ]
        views = [self.view(i) for i in range(SLOTS)]
        return self.connection.request("sequence", {"tensors": views, "ops": wire, "device": self.machine.gpu, **options})

    def round(self) -> None:
        expected, sent = self.deal(), []
        options = {"stream": self.rng.randrange(3), "timing": self.rng.random() < 0.5}
        for _ in range(self.rng.randint(1, 10)):
            ops = [self.op(expected) for _ in range(1 if self.rng.random() < 0.7 else self.rng.randint(2, 6))]
            sent.append(self.send(ops[0], options) if len(ops) == 1 else self.send_all(ops, options))
        for msgid in sent:
            self.connection.reply(msgid).get()
        assert np.array_equal(self.slots, expected, equal_nan=True), f"{self.slots}, not {expected}"


class Replayer(Dealer):
    """Programs that run several times at once, and are made anew."""

    program, left = 0, 0

    def round(self) -> None:
        if not self.left:
            if self.program:
                self.connection.call("release", {"program": self.program})
            ops = [("square", [0], 1), ("add", [1, 0], 2), ("add", [2, 2], 3), ("square", [0], 2)]
            wire = [{"op": name, "in": inputs, "out": [out]} for name, inputs, out in ops]
            views = [self.view(i) for i in range(SLOTS)]
            self.program = self.connection.call("program", {"tensors": views, "ops": wire})["program"]
            self.left = self.rng.randint(1, 5)
        self.left -= 1
        expected = self.deal()
        a = expected[0]
        expected[1:4] = a * a, a * a, 2 * (a * a + a)
        for msgid in [self.connection.request("run_program", {"program": self.program}) for _ in range(self.rng.randint(1, 6))]:
            self.connection.reply(msgid).get()
        assert (self.slots == expected).all()


class Orderly(Dealer):
    """Ordered work: this plays the stream, and looks at the memory when a word says that a run is done."""

    def prepare(self, machine: Domains) -> None:
        super().prepare(machine)
        self.page, self.value = Timelines(self.connection), 0

    def round(self) -> None:
        expected, stream = self.deal(), self.rng.randrange(2)
        runs = []
        for _ in range(self.rng.randint(1, 8)):
            self.value += 1
            op = self.op(expected)
            options = {"stream": stream, "ready": self.value, "done": self.value, "timing": False}
            runs.append((op[2], expected[op[2]].copy(), self.value, self.send(op, options)))
        ahead = self.rng.randint(1, 3)  # words that are reached before the first run is done
        for i, (out, result, value, msgid) in enumerate(runs):
            self.page.reach(stream, runs[min(i + ahead, len(runs)) - 1][2])
            self.page.wait_done(stream, value)
            last = i + 1 == len(runs) or ahead == 1
            assert not last or np.array_equal(self.slots[out], result, equal_nan=True), "its word came too early"
            self.connection.reply(msgid).get()
        assert np.array_equal(self.slots, expected, equal_nan=True)


KINDS: list[Callable[[Domains, int, int], Bystander]] = [
    Dealer, partial(Dealer, shared=True), partial(Dealer, kernels=True), partial(Dealer, kernels=True, shared=True),
    Replayer, Orderly, partial(Orderly, kernels=True), lambda machine, _, uid: Counter(machine, uid),
]  # fmt: skip


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


@pytest.mark.parametrize("isolate", ["user", "connection"])
def test_neighbours(isolate: str) -> None:
    # On a machine that has much else to do, a neighbour's own kernel may take more than the usual two seconds.
    scene = Scene(quiet=True, isolate=isolate, maximum=24, spares=1, more="longest_s = 6\n" + OPEN)
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    others: list[Bystander] = []
    try:
        for i, kind in enumerate(KINDS):
            others.append(kind(scene.machine, seed + i, NEIGHBOURS[i % len(NEIGHBOURS)]))
        attack(scene, seed)
        before, memory = scene.holdings(), [own_memory(scene)]
        for again in range(1, ATTACKS_MAX):
            attack(scene, seed + again)
            scene.settle(before)
            for one in others:
                one.goes_on()
            memory.append(own_memory(scene))
            if memory[-1] < memory[-2] + DAEMON_KIB:
                break
        else:
            assert sanitized(), f"KiB after each attack: {memory}"
    finally:
        for one in others:
            one.close()
    for one in others:
        one.check()
    counts = scene.watcher.connection.call("stats")["executor_counts"]
    assert counts["faults"] + counts["jobs_ended"] >= FAULTS, counts
    print(f"{isolate}: {counts}, {sum(one.rounds for one in others)} rounds of others, {memory} to {own_memory(scene)} KiB")
    scene.close()
