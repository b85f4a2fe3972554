"""The tasks that the cheats here pretend to solve, as a file for `kopsctl judge tests/judge/cheats/tasks.py:NAME SOLUTION…`."""

from __future__ import annotations

from typing import Any

import numpy as np
from kops.judge import Task


def _normal(rng: Any, *shape: int) -> Any:
    return rng.standard_normal(shape, dtype=np.float32)


tasks = [
    Task(
        "affine",
        lambda x, y: 2 * x + y,
        lambda rng, n: {"x": _normal(rng, n), "y": _normal(rng, n)},
        [{"n": 1000}, {"n": 2500}, {"n": 1024}],
        small=[{"n": 1000}, {"n": 1500}, {"n": 1024}],
        exchange=True,
    ),
    Task(
        "product",
        lambda a, b: a @ b,
        lambda rng, n: {"a": _normal(rng, n, n), "b": _normal(rng, n, n)},
        [{"n": 100}, {"n": 256}],
        small={"n": 40},
        exchange=True,
    ),
    Task(
        "sums",
        lambda x: x.sum(axis=1),
        lambda rng, rows, columns: {"x": rng.random((rows, columns), dtype=np.float32)},
        [{"rows": 50, "columns": 1000}, {"rows": 1000, "columns": 4096}],
        small={"rows": 20, "columns": 500},
        exchange=True,
    ),
]
