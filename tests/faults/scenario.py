"""Something of everything, by clients that check every answer."""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Any

import numpy as np
from arrays import Vectors, run_params
from faults import Client, FaultyDaemon
from support import memfd, raw
from support.ring import Ring

N = 1000


class Worker(Client):
    """A client with three registered vectors."""

    vectors: Vectors | None = None

    def prepare(self) -> None:
        self.vectors = self.attempt(Vectors, self.connection, 3, N)
        if self.vectors:
            self.vectors[0][:] = np.arange(N)
            self.vectors[1][:] = 2

    def params(self, op: str = "add", **more: Any) -> dict[str, Any]:
        assert self.vectors
        ins = [self.vectors.tensor(i) for i in range(2 if op == "add" else 1)]
        return run_params(op, ins, self.vectors.tensor(2), **more)

    def check(self, reply: Any, expected: Any) -> None:
        """A run that says that it succeeded did."""
        if reply is not None:
            assert self.vectors
            assert np.array_equal(self.vectors[2], expected), f"{self.name} got a wrong result"

    def run(self, ring: Ring | None = None, **more: Any) -> None:
        if not self.vectors:
            return
        self.vectors[2][:] = -1
        call = ring.call if ring else self.connection.call
        self.check(self.attempt(call, "run", self.params(**more)), np.arange(N) + 2)

    def pipeline(self) -> None:
        """Many requests before the first answer is read; each has its own."""
        if not self.vectors:
            return
        ids = self.attempt(
            lambda: [
                (self.connection.request("run", self.params()), self.connection.request("ping", {"n": n}))
                for n in range(10)
            ]
        )
        for n, (run, ping) in enumerate(ids or ()):
            self.attempt(lambda run=run: self.connection.reply(run).get())
            answer = self.attempt(lambda ping=ping: self.connection.reply(ping).get())
            assert answer in (None, {"n": n})


def shared_memory(a: Worker) -> Ring | None:
    """The ring, and everything that goes over it."""
    ring = a.attempt(Ring, a.connection)
    if not ring:
        return None
    a.run(ring)
    a.run(ring, repeat=50)  # a reply with fifty samples
    answer = a.attempt(ring.call, "ping", {"x": bytes(20000)})
    assert answer in (None, {"x": bytes(20000)})
    ids = a.attempt(lambda: [ring.request("ping", {"n": n}) for n in range(20)])
    for n, msgid in enumerate(ids or ()):
        answer = a.attempt(lambda msgid=msgid: ring.reply(msgid).get())
        assert answer in (None, {"n": n})
    return ring


def allocated(a: Worker) -> None:
    """Memory of the daemon's, mapped and used."""

    def whole() -> None:
        reply = a.connection.reply(a.connection.request("alloc", {"size": 8192, "device": 0}))
        buffer = reply.get()["buffer"]
        with mmap.mmap(reply.fds[0], 8192) as memory:
            assert memory[:] == bytes(8192), "memory of somebody's"
            memory[:4000] = np.full(1000, 3, np.float32).tobytes()
            os.close(reply.fds.pop())
            tensors = [raw.tensor(buffer, [1000], offset=offset) for offset in (0, 4096)]
            a.connection.run("square", [tensors[0]], [tensors[1]])
            assert np.all(np.frombuffer(memory[4096:8096], np.float32) == 9), "a wrong result in memory of the daemon's"
        a.connection.call("release", {"buffer": buffer})

    a.attempt(whole)


def several_ops(a: Worker) -> None:
    """A sequence, and the same as a program."""
    if not a.vectors:
        return
    tensors = [a.vectors.tensor(i) for i in range(3)]
    ops = [{"op": "add", "in": [0, 1], "out": [2]}, {"op": "square", "in": [2], "out": [2]}]
    expected = (np.arange(N, dtype=np.float32) + 2) ** 2
    a.vectors[2][:] = -1
    a.check(a.attempt(a.connection.call, "sequence", {"tensors": tensors, "ops": ops}), expected)
    program = a.attempt(a.connection.call, "program", {"tensors": tensors, "ops": ops})
    if not program:
        return
    for _ in range(2):
        a.vectors[2][:] = -1
        a.check(a.attempt(a.connection.call, "run_program", {"program": program["program"]}), expected)
    a.attempt(a.connection.call, "release", {"program": program["program"]})


def stopped(a: Worker) -> None:
    """A run that is cancelled, and one whose time is over."""
    if not a.vectors:
        return
    msgid = a.attempt(a.connection.request, "run", a.params(repeat=10000))
    if msgid:
        a.attempt(a.connection.call, "cancel", {"msgid": msgid})
        a.attempt(lambda: a.connection.reply(msgid).get(), also=("cancelled",))
    late = a.params(repeat=10000, deadline_ms=1)
    a.attempt(a.connection.call, "run", late, also=("deadline_exceeded",))


def wrong(b: Worker) -> None:
    """What is no good is refused as ever."""
    b.attempt(b.connection.call, "no_such_method", also=("unknown_method",))
    b.attempt(b.connection.call, "run", {"op": "add"}, also=("missing_key",))
    unknown = run_params("square", [raw.tensor(12345, [10])], raw.tensor(12345, [10]))
    b.attempt(b.connection.call, "run", unknown, also=("unknown_buffer",))


def answers(b: Worker) -> None:
    """What the daemon tells of itself."""
    stats = b.attempt(b.connection.call, "stats")
    assert stats is None or stats["counters"]["requests"] > 0
    b.attempt(b.connection.call, "clients")
    metrics = b.attempt(b.connection.call, "metrics")
    assert metrics is None or "kopsd_" in metrics["text"]
    b.attempt(b.connection.call, "trim")


def large_and_split(b: Worker, other: Worker) -> None:
    """A message larger than what a socket takes at once, and one in two pieces."""
    answer = b.attempt(b.connection.call, "ping", {"x": bytes(300000)})
    assert answer in (None, {"x": bytes(300000)})
    data = raw.pack_request(70000, "ping", {"x": bytes(5000)})
    b.attempt(b.connection.send, data[:3000])
    answer = other.attempt(other.connection.call, "ping", {"still": 1})
    assert answer in (None, {"still": 1})
    b.attempt(b.connection.send, data[3000:])
    answer = b.attempt(lambda: b.connection.reply(70000).get())
    assert answer in (None, {"x": bytes(5000)})
    b.attempt(b.connection.send, raw.pack([2, "ping", [{}]]))


def hangs_up(which: FaultyDaemon) -> None:
    """One that goes without reading, with work in flight."""
    c = Worker(which, "c")
    c.prepare()
    if c.vectors:
        c.attempt(lambda: [c.connection.request("run", c.params(repeat=100)) for _ in range(5)])
    c.close()


def play(which: FaultyDaemon) -> None:
    with contextlib.ExitStack() as stack:
        a, b = Worker(which, "a"), Worker(which, "b")
        stack.callback(a.close)
        stack.callback(b.close)
        hello = b.attempt(b.connection.call, "hello", {"client": "b"})
        assert hello is None or hello["protocol"] == 1
        a.prepare()
        b.prepare()
        a.run()
        b.run()
        ring = shared_memory(a)
        if ring:
            stack.callback(ring.close)
        allocated(a)
        b.run()
        several_ops(a)
        b.pipeline()
        stopped(a)
        hangs_up(which)
        wrong(b)
        answers(b)
        large_and_split(b, a)
        b.run()
        a.run()


def fresh_client(which: FaultyDaemon) -> None:
    """Serves as if nothing had been."""
    with which.connect() as connection:
        assert connection.call("hello", {"client": "fresh"})["protocol"] == 1
        shared = memfd.Shared(12000)
        buffer = connection.register(shared)
        values = shared.view(np.float32, 3000, 0)
        values[:1000], values[1000:2000] = 5, 7
        tensors = [raw.tensor(buffer, [1000], offset=4000 * i) for i in range(3)]
        connection.run("add", tensors[:2], [tensors[2]])
        assert np.all(values[2000:] == 12)
        connection.call("release", {"buffer": buffer})
