"""Registered vectors, and work that lasts."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from support import backends, memfd, proc, raw
from support.daemon import thread_sanitized

POISON = -12345.0

# Where runs go whose tensors are all in shared memory.
BACKEND = os.environ.get("KOPS_TEST_BACKEND", backends.HOST)


class Vectors:
    """One registered memfd, cut into `count` float32 vectors of `length` elements."""

    def __init__(self, connection: raw.Connection, count: int, length: int) -> None:
        self.count, self.length = count, length
        self.shared = memfd.Shared(4 * count * length)
        self.arrays = [self.shared.view(np.float32, length, 4 * length * i) for i in range(count)]
        self.buffer = connection.register(self.shared)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.arrays[index]

    def tensor(self, index: int, **more: Any) -> dict[str, Any]:
        return raw.tensor(self.buffer, [self.length], offset=4 * self.length * index, **more)


def run_params(op: str, ins: list[dict[str, Any]], out: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"op": op, "in": ins, "out": [out], **more}


class LongRun:
    """A run that lasts until it is stopped: the most repeats that are allowed, on much memory. It has begun to
    execute when this returns; its output tells."""

    # Less where every access is watched: one execution may not take longer than what it is to outlast.
    LENGTH = 1 << 18 if thread_sanitized() else 4 << 20

    def __init__(self, connection: raw.Connection, wait: bool = True, **more: Any) -> None:
        self.vectors = Vectors(connection, 2, self.LENGTH)
        self.vectors[0][:] = 3
        self.vectors[1][:] = POISON
        params = run_params("square", [self.vectors.tensor(0)], self.vectors.tensor(1), repeat=10000, **more)
        self.msgid = connection.request("run", params)
        if wait and BACKEND == backends.HOST:
            proc.eventually(self.begun, "the run begins")
        elif wait:
            # A GPU's result comes back at the end only; all that can be seen is that the request was taken.
            assert connection.alive()

    def begun(self) -> bool:
        return self.vectors[1][0] != POISON
