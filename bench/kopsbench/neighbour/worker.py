"""The user that works, over a plain socket: blocking adds in shared memory, one after the other, every answer checked; or
compiles of small sources."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from support import memfd, raw

ELEMENTS = 1024


@dataclass
class Found:
    """Durations in microseconds, of the calls that were answered or given up; and what was not as it should be."""

    samples: list[float] = field(default_factory=list)
    wrong: int = 0
    failures: list[str] = field(default_factory=list)


class Worker:
    def __init__(self, path: str, patience: float) -> None:
        self.calls = 0
        self.connection = raw.Connection(path)
        self.connection.socket.settimeout(patience)

    def call(self, found: Found) -> bool:
        """One call; false when there is no use in another."""
        raise NotImplementedError

    def work(self, seconds: float) -> Found:
        found = Found()
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.call(found):
            pass
        return found

    def ask(self, found: Found, method: str, params: dict[str, Any]) -> raw.Reply | None:
        msgid = self.calls & 0x7FFFFFFF
        data = raw.pack_request(msgid, method, params)
        reply, start = None, time.perf_counter_ns()
        try:
            self.connection.socket.sendall(data)
            reply = self.connection.reply(msgid)
        except (OSError, raw.Closed) as error:
            found.failures.append(f"{type(error).__name__}: {error}"[:200])
        found.samples.append((time.perf_counter_ns() - start) / 1000)
        if reply and reply.error is not None:
            found.failures.append(str(reply.error)[:200])
        return reply


class Compiler(Worker):
    def call(self, found: Found) -> bool:
        self.calls += 1
        source = f'extern "C" __global__ void f(float* p) {{ *p = {self.calls}; }}\n'
        reply = self.ask(found, "compile", {"source": source, "entries": ["f"], "arch": "sm_90a"})
        if reply and reply.error is None:
            found.wrong += reply.result["cached"] != "no"
        return reply is not None


class Adder(Worker):
    def __init__(self, path: str, patience: float, device: str | None = None, elements: int = ELEMENTS) -> None:
        super().__init__(path, patience)
        self.shared = memfd.Shared(3 * 4 * elements)
        self.vectors = self.shared.view(np.float32, 3 * elements).reshape(3, elements)
        self.vectors[0], self.vectors[1] = np.arange(elements), 3.0
        buffer = self.connection.register(self.shared)
        a, b, out = (raw.tensor(buffer, [elements], offset=4 * elements * i) for i in range(3))
        self.params = {"op": "add", "in": [a, b], "out": [out], "timing": False, **({"device": device} if device else {})}

    def call(self, found: Found) -> bool:
        a, b, out = self.vectors
        self.calls += 1
        b[:] = np.float32(self.calls % 1000)
        out[:] = np.nan
        reply = self.ask(found, "run", self.params)
        if reply and reply.error is None and not np.array_equal(out, a + b):
            found.wrong += 1
        return reply is not None
