"""A client of the soak test, in Python: random work whose every answer it checks.

`worker.py SOCKET SEED REQUESTS SECONDS` ends after so many requests or so long and prints a line of JSON; status 1, and
what differed, when an answer was wrong. kops_soak_client (soak_client.c) is the same in C.
"""

from __future__ import annotations

import json
import random
import sys
import time

import kops
import numpy as np

SIZES = (0, 1, 7, 64, 1000, 4097, 20_000)


class Worker:
    def __init__(self, client: kops.Client, seed: int) -> None:
        self.k = client
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.shared = client.empty((3, SIZES[-1]), "f32")
        self.requests = self.checked = 0

    def values(self, *shape: int) -> np.ndarray:
        """Small integers: sums and products of them are exact in f32."""
        return self.numbers.integers(-8, 9, shape).astype(np.float32)

    def check(self, got: np.ndarray, want: np.ndarray, what: str) -> None:
        self.checked += 1
        if got.shape != want.shape or not np.array_equal(got, want):
            raise SystemExit(f"{what} of shape {want.shape}: a wrong answer")

    def shared_add(self) -> None:
        n = self.random.choice(SIZES)
        a, b, out = self.shared[:, :n]
        a[:], b[:], out[:] = self.values(n), self.values(n), np.nan
        self.k.add(a, b, out=out)
        self.check(out, a + b, "add in shared memory")
        self.requests += 1

    def copied(self) -> None:
        a = self.values(self.random.choice(SIZES))
        self.check(self.k.square(a), a * a, "square of an array")
        self.requests += 1

    def gemm(self) -> None:
        m, k, n = (self.random.randrange(1, 70) for _ in range(3))
        a, b = self.values(m, k), self.values(k, n)
        self.check(self.k.gemm(a, b), a @ b, "gemm")
        self.requests += 1

    def pipelined(self) -> None:
        n = self.random.choice(SIZES[1:5])
        jobs = []
        for _ in range(self.random.randrange(1, 24)):
            a, b = self.values(n), self.values(n)
            jobs.append((self.k.submit("add", a, b, stream=self.random.randrange(3)), a + b))
        for job, want in jobs:
            got = job.result()
            self.check(got[0] if isinstance(got, (list, tuple)) else got, want, "a pipelined add")
            self.requests += 1

    def program(self) -> None:
        n = self.random.choice(SIZES[1:])
        a, b, out = self.shared[:, :n]
        with self.k.program() as program:
            self.k.add(a, b, out=out)
            self.k.square(out, out=out)
        for _ in range(self.random.randrange(1, 8)):
            a[:], b[:], out[:] = self.values(n), self.values(n), np.nan
            program.run()
            self.check(out, (a + b) ** 2, "a program")
            self.requests += 1

    def refused(self) -> None:
        a, b = self.values(5), self.values(6)
        try:
            self.k.add(a, b)
        except kops.ShapeMismatch:
            self.checked += 1
        else:
            raise SystemExit("shapes that do not fit were added")
        self.requests += 1

    def turn(self) -> None:
        kinds = (self.shared_add, self.copied, self.gemm, self.pipelined, self.program, self.refused)
        self.random.choices(kinds, weights=(8, 3, 2, 2, 1, 1))[0]()


def main() -> int:
    socket, seed, requests, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    until = time.monotonic() + seconds
    with kops.connect(socket, timeout=300) as k:
        worker = Worker(k, seed)
        while worker.requests < requests and time.monotonic() < until:
            worker.turn()
    print(json.dumps({"requests": worker.requests, "checked": worker.checked}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
