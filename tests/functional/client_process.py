"""One Python client among many: runs every op on data of its own, again and again, and checks every result.

Ends with status 0 when all were right. `client_process.py ROUNDS`.
"""

from __future__ import annotations

import os
import sys

import kops
import numpy as np


def check(got: np.ndarray, want: np.ndarray, what: str) -> None:
    if not np.allclose(got, want, rtol=2e-5, atol=1e-4):
        raise SystemExit(f"{what}: wrong by up to {np.abs(got - want).max()}")


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    rng = np.random.default_rng(os.getpid())
    with kops.connect() as k:
        shared = k.empty((3, 50_000), "f32")
        for _ in range(rounds):
            a = rng.normal(size=rng.integers(1, 40_000)).astype(np.float32)
            b = rng.normal(size=a.size).astype(np.float32)
            check(k.add(a, b), a + b, "add of copied arrays")
            n = a.size
            shared[0, :n], shared[1, :n] = a, b
            k.add(shared[0, :n], shared[1, :n], out=shared[2, :n])
            check(shared[2, :n], a + b, "add in shared memory")
            k.square(shared[2, :n], out=shared[2, :n])
            check(shared[2, :n], (a + b) ** 2, "square in place")
            m, k_, n = rng.integers(1, 90, 3)
            x = rng.normal(size=(m, k_)).astype(np.float32)
            y = rng.normal(size=(n, k_)).astype(np.float32)
            check(k.gemm(x, y, trans_b=True), x @ y.T, "gemm")
    return 0


if __name__ == "__main__":
    sys.exit(main())
