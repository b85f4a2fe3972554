"""Clients that work at random, know what should come of it, and allow for what a lost executor may cost them.

A request may fail with one of LOST: then what it was to write is undefined, and so is what is made of that. Everything else
is right, and nothing was done twice.
"""

from __future__ import annotations

import random
from collections import Counter as Tally
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from domains import Bystander, Domains, Plain
from support import memfd
from support.raw import tensor
from test_ordered import Timelines
from user_kernels import CUSTOM_PARAMS, OTHERS, compile_source, declare, hostile_kernel

LOST = ("device_lost", "device_fault")
M = 64  # elements of a slot
SLOTS = 6
answers: Tally[str] = Tally()


@dataclass
class Op:
    """One of a batch: slots that it reads, and the one that it writes."""

    name: str  # "add", "square", or "double": a kernel of the client's
    inputs: list[int]
    out: int

    def apply(self, slots: np.ndarray) -> None:
        values = [slots[i] for i in self.inputs]
        with np.errstate(all="ignore"):
            if self.name == "add":
                slots[self.out] = values[0] + values[1]
            else:
                slots[self.out] = values[0] * (values[0] if self.name == "square" else np.float32(2))


class Batch:
    """Slots of memory, ops on them in the order of a stream, and what should be there after them."""

    def __init__(self, rng: random.Random, memory: np.ndarray) -> None:
        self.memory = memory.reshape(SLOTS, M)
        self.expected = np.array([[rng.randint(-3, 3) for _ in range(M)] for _ in range(SLOTS)], np.float32)
        self.memory[:] = self.expected
        self.undefined = [False] * SLOTS

    def ended(self, op: Op, error: dict[str, Any] | None) -> None:
        """In the order of the ops."""
        op.apply(self.expected)
        self.undefined[op.out] = error is not None or any(self.undefined[i] for i in op.inputs)

    def check(self) -> None:
        for i in range(SLOTS):
            assert self.undefined[i] or self.same(self.memory[i], i), f"slot {i}: {self.memory[i]}, not {self.expected[i]}"

    def same(self, seen: np.ndarray, slot: int) -> bool:
        return np.array_equal(seen, self.expected[slot], equal_nan=True)


class Stormy(Bystander):
    """`spared`: nobody touches its executors, so that nothing may be lost."""

    def __init__(self, machine: Domains, seed: int, uid: int = 0, spared: bool = False) -> None:
        self.seed, self.allowed = seed, () if spared else LOST
        super().__init__(machine, uid)

    def prepare(self, machine: Domains) -> None:
        self.machine = machine
        self.rng = random.Random(self.seed)

    def outcome(self, msgid: int) -> dict[str, Any] | None:
        error = self.connection.reply(msgid).error
        assert error is None or error["code"] in self.allowed, error
        answers["ok" if error is None else error["code"]] += 1
        return error


class Dealer(Stormy):
    """Random ops, some of them in place, some overwriting what others have read; with kernels of its own or without; in
    device memory or, staged, in shared memory; one by one, or as sequences."""

    def __init__(self, machine: Domains, seed: int, kernels: bool = False, shared: bool = False, **more: Any) -> None:
        self.kernels, self.shared = kernels, shared
        super().__init__(machine, seed, **more)

    def prepare(self, machine: Domains) -> None:
        super().prepare(machine)
        count = SLOTS * M
        if self.shared:
            self.file = memfd.Shared(4 * count)
            self.data = self.file.view(np.float32, count)
            self.buffer = self.connection.register(self.file)
        else:
            self.memory = Plain(self.connection, machine.gpu, count)
            self.data, self.buffer = self.memory.data, self.memory.buffer
        if self.kernels:
            module = compile_source(self.connection, OTHERS, "custom_kernel")["module"]
            self.double = declare(self.connection, module, entry="custom_kernel", params=CUSTOM_PARAMS)

    def view(self, slot: int) -> dict[str, Any]:
        return tensor(self.buffer, [M], offset=4 * M * slot)

    def op(self) -> Op:
        name = self.rng.choice(["add", "add", "square", "double"] if self.kernels else ["add", "add", "square"])
        inputs = [self.rng.randrange(SLOTS) for _ in range(2 if name == "add" else 1)]
        return Op(name, inputs, self.rng.choice([i for i in range(SLOTS) if name != "double" or i not in inputs]))

    def send(self, op: Op, options: dict[str, Any]) -> int:
        inputs, out = [self.view(i) for i in op.inputs], self.view(op.out)
        if op.name == "double":
            return self.connection.request("launch", {"kernel": self.double, "args": [out, *inputs, M], **options})
        return self.connection.request("run", {"op": op.name, "in": inputs, "out": [out], "device": self.machine.gpu, **options})

    def send_all(self, ops: list[Op], options: dict[str, Any]) -> int:
        """As a sequence."""
        wire = [{"kernel": self.double, "args": [o.out, *o.inputs, M]} if o.name == "double" else
                {"op": o.name, "in": o.inputs, "out": [o.out]} for o in ops]  # fmt: skip
        views = [self.view(i) for i in range(SLOTS)]
        return self.connection.request("sequence", {"tensors": views, "ops": wire, "device": self.machine.gpu, **options})

    def round(self) -> None:
        batch = Batch(self.rng, self.data)
        options = {"stream": self.rng.randrange(3), "timing": self.rng.random() < 0.5}
        sent: list[tuple[int, list[Op]]] = []
        for _ in range(self.rng.randint(1, 10)):
            ops = [self.op() for _ in range(1 if self.rng.random() < 0.7 else self.rng.randint(2, 6))]
            sent.append((self.send(ops[0], options) if len(ops) == 1 else self.send_all(ops, options), ops))
        for msgid, ops in sent:
            error = self.outcome(msgid)
            for op in ops:
                batch.ended(op, error)
        batch.check()


class Replayer(Stormy):
    """Programs that run several times at once, and are made anew."""

    def prepare(self, machine: Domains) -> None:
        super().prepare(machine)
        self.memory = Plain(self.connection, machine.gpu, SLOTS * M)
        self.program, self.left = 0, 0

    def renew(self) -> None:
        if self.program:
            self.connection.call("release", {"program": self.program})
        views = [self.memory.tensor(M, M * i) for i in range(SLOTS)]
        self.ops = [Op("square", [0], 1), Op("add", [1, 0], 2), Op("add", [2, 2], 3), Op("square", [0], 2)]
        wire = [{"op": op.name, "in": op.inputs, "out": [op.out]} for op in self.ops]
        self.program = self.connection.call("program", {"tensors": views, "ops": wire})["program"]
        self.left = self.rng.randint(1, 5)

    def round(self) -> None:
        if not self.left:
            self.renew()
        self.left -= 1
        batch = Batch(self.rng, self.memory.data)
        sent = [self.connection.request("run_program", {"program": self.program}) for _ in range(self.rng.randint(1, 6))]
        for msgid in sent:
            assert self.outcome(msgid) is None, "a program that writes what it reads before it reads it may run again"
        for op in self.ops:
            batch.ended(op, None)
        batch.check()


class Counting(Stormy):
    """A kernel that counts its runs: none runs twice."""

    def prepare(self, machine: Domains) -> None:
        super().prepare(machine)
        self.count = Plain(self.connection, machine.gpu, 1, "u32")
        self.kernel = hostile_kernel(self.connection, "run_for")

    def round(self) -> None:
        before, n = int(self.count.data[0]), self.rng.randint(1, 8)
        params = {"kernel": self.kernel, "args": [self.count.tensor(), self.rng.choice([1, 200])]}
        sent = [self.connection.request("launch", {**params, "stream": i % 3}) for i in range(n)]
        done = sum(self.outcome(msgid) is None for msgid in sent)
        assert done <= self.count.data[0] - before <= n, f"{n} launches, {done} done, {self.count.data[0] - before} runs"


class Orderly(Dealer):
    """Ordered work: this plays the stream, and looks at the memory when a word says that a run is done."""

    def prepare(self, machine: Domains) -> None:
        super().prepare(machine)
        self.page, self.value = Timelines(self.connection), 0

    def round(self) -> None:
        batch, stream = Batch(self.rng, self.data), self.rng.randrange(2)
        runs = []
        for _ in range(self.rng.randint(1, 8)):
            self.value += 1
            op = self.op()
            runs.append((op, self.value, self.send(op, {"stream": stream, "ready": self.value, "done": self.value, "timing": False})))
        ahead = self.rng.randint(1, 3)  # words that are reached before the first run is done
        for i, (op, value, msgid) in enumerate(runs):
            self.page.reach(stream, runs[min(i + ahead, len(runs)) - 1][1])
            self.page.wait_done(stream, value)
            seen = batch.memory[op.out].copy()
            batch.ended(op, self.outcome(msgid))
            last = i + 1 == len(runs) or ahead == 1
            assert not last or batch.undefined[op.out] or batch.same(seen, op.out), "its word came too early"
        batch.check()


class Changing(Dealer):
    """Comes and goes, also in the middle of its work; its memory and kernels with it."""

    def round(self) -> None:
        for _ in range(self.rng.randint(0, 2)):
            super().round()
        for _ in range(self.rng.randint(0, 4)):
            self.send(self.op(), {"stream": self.rng.randrange(3)})
        self.connection.close()
        self.connection = self.machine.daemon.connect()
        rng = self.rng
        self.prepare(self.machine)
        self.rng = rng


KINDS: list[Callable[..., Stormy]] = [
    Dealer,
    partial(Dealer, shared=True),
    partial(Dealer, kernels=True),
    partial(Dealer, kernels=True, shared=True),
    Replayer,
    Counting,
    Orderly,
    partial(Orderly, kernels=True),
    Changing,
    partial(Changing, kernels=True),
]
