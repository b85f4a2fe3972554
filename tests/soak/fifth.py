"""The user that works while others do their worst: adds, and now and then what else a client does, every answer checked.

Single-threaded; runs in a process of its own."""

from __future__ import annotations

import os
import random
import time
from array import array
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from kopsbench.neighbour.worker import Adder, Found
from support import memfd, raw
from support.raw import tensor

N = 1024
BURST, PAUSE_S = 20, 0.005  # calls in a row, and what it thinks in between
OTHER_CALLS = 0.01  # of the bursts
KEPT_FAILURES = 20


@dataclass
class Tally:
    durations: array = field(default_factory=lambda: array("f"))  # of adds, in microseconds
    slowest: dict[str, float] = field(default_factory=dict)  # of the other calls
    calls: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    failures: list[str] = field(default_factory=list)

    def fail(self, what: str) -> None:
        if len(self.failures) < KEPT_FAILURES:
            self.failures.append(what[:300])

    def check(self, got: Any, want: Any) -> None:
        self.wrong += not np.array_equal(got, want)


class Fifth:
    def __init__(self, path: str, patience: float, seed: int) -> None:
        self.path, self.patience = path, patience
        self.random = random.Random(seed)
        self.tally = Tally()
        self.adder = Adder(path, patience)
        self.others = (self.ping, self.connect_anew, self.alloc, self.sequence, self.program, self.gemm, self.hello)

    # ---- the other calls, each on a connection that is made for it ----

    def ping(self, link: raw.Connection) -> None:
        params = {"x": list(range(100))}
        self.tally.check(link.call("ping", params), params)

    def hello(self, link: raw.Connection) -> None:
        self.tally.check("add" in [op["name"] for op in link.call("hello")["ops"]], True)

    def vectors(self, link: raw.Connection, count: int, elements: int) -> tuple[np.ndarray, list[dict]]:
        shared = memfd.Shared(4 * count * elements)
        buffer = link.register(shared)
        values = shared.view(np.float32, count * elements).reshape(count, elements)
        values[:] = np.arange(count * elements).reshape(values.shape) % 13
        return values, [tensor(buffer, [elements], offset=4 * elements * i) for i in range(count)]

    def connect_anew(self, link: raw.Connection) -> None:
        values, (a, b, out) = self.vectors(link, 3, N)
        link.run("add", [a, b], [out])
        self.tally.check(values[2], values[0] + values[1])
        link.call("release", {"buffer": a["buffer"]})

    def alloc(self, link: raw.Connection) -> None:
        reply = link.reply(link.request("alloc", {"size": 8 * N}))
        a = tensor(reply.get()["buffer"], [N])
        link.run("square", [a], [{**a, "offset": 4 * N}])
        with os.fdopen(reply.fds[0], "rb") as file:
            reply.fds.clear()
            self.tally.check(np.frombuffer(file.read(8 * N), np.float32), np.zeros(2 * N, np.float32))

    def sequence(self, link: raw.Connection) -> None:
        values, tensors = self.vectors(link, 3, N)
        ops = [{"op": "add", "in": [0, 1], "out": [2]}, {"op": "square", "in": [2], "out": [2]}]
        link.call("sequence", {"tensors": tensors, "ops": ops})
        self.tally.check(values[2], (values[0] + values[1]) ** 2)

    def program(self, link: raw.Connection) -> None:
        values, tensors = self.vectors(link, 3, N)
        ops = [{"op": "add", "in": [0, 1], "out": [2]}] * 8
        program = link.call("program", {"tensors": tensors, "ops": ops})["program"]
        link.call("run_program", {"program": program})
        self.tally.check(values[2], values[0] + values[1])

    def gemm(self, link: raw.Connection) -> None:
        values, tensors = self.vectors(link, 3, 64 * 64)
        a, b, out = ({**its, "shape": [64, 64]} for its in tensors)
        link.run("gemm", [a, b], [out])
        self.tally.check(values[2].reshape(64, 64), values[0].reshape(64, 64) @ values[1].reshape(64, 64))

    # ---- all of it ----

    def other(self) -> bool:
        call = self.random.choice(self.others)
        name = call.__name__
        start = time.perf_counter_ns()
        try:
            with raw.Connection(self.path) as link:
                link.socket.settimeout(self.patience)
                call(link)
        except (OSError, raw.Closed, raw.RpcError) as error:
            self.tally.fail(f"{name}: {type(error).__name__}: {error}")
            return not isinstance(error, TimeoutError)
        taken = (time.perf_counter_ns() - start) / 1000
        self.tally.calls[name] += 1
        self.tally.slowest[name] = max(self.tally.slowest.get(name, 0.0), taken)
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
