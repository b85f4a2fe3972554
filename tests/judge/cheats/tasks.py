"""The tasks that the cheats here pretend to solve, as a file for `kopsctl judge tests/judge/cheats/tasks.py:NAME SOLUTION…`."""

from __future__ import annotations

from typing import Any

import numpy as np
from kops.judge import Task


def _means(x: Any) -> Any:
    return x.mean(axis=1, dtype=np.float64 if x.dtype == np.float64 else np.float32).astype(x.dtype)


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
    Task(
        "gated",
        lambda x, y, f: f[:, None] * (x @ y),
        lambda rng, n: {"x": _normal(rng, n, n), "y": _normal(rng, n, n), "f": (10 ** rng.uniform(-8, 2, n)).astype("f4")},
        [{"n": 100}, {"n": 512}],
        small={"n": 48},
    ),
    Task(
        "means",
        _means,
        lambda rng, rows, columns: {"x": (rng.random((rows, columns)) + 8 * rng.random((rows, 1))).astype("f2")},
        [{"rows": 64, "columns": 65536}],
        small={"rows": 24, "columns": 16384},
    ),
    Task(
        "centred",
        _means,
        lambda rng, rows, columns: {"x": rng.random((rows, columns)).astype("f2")},
        [{"rows": 64, "columns": 65536}],
        small={"rows": 16, "columns": 65536},
    ),
]
