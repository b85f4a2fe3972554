"""The timing loop of the tutorials that these kernels come from: ten calls to warm up, ten that are measured, each with a
synchronisation; kopsd's kernel beside torch's op, in one table."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import mean
from time import perf_counter
from typing import Any

import numpy as np
from common import Example, Interpreted, Place, place_of
from five import EXAMPLES

WARM_UPS, MEASURED = 10, 10
SIZES = {"square_matrix": (1024, 1024), "gemm": (1024, 1024, 1024)}
SIZE = (1 << 20,)
HEAD = ("kernel", "size", "kopsd µs", "torch µs", "kopsd / torch")


def torch_op(name: str) -> Callable[..., Any]:
    import torch

    ops: dict[str, Callable[..., Any]] = {
        "square_matrix": torch.square,
        "add2": torch.add,
        "gemm": torch.mm,
        "custom": lambda a, out: torch.mul(a, 2, out=out),
        "vector_add": torch.add,
    }
    return ops[name]


def numpy_op(name: str) -> Callable[..., Any]:
    ops: dict[str, Callable[..., Any]] = {
        "square_matrix": np.square,
        "add2": np.add,
        "gemm": np.matmul,
        "custom": lambda a, out: np.multiply(a, np.float32(2), out=out),
        "vector_add": np.add,
    }
    return ops[name]


def timed(call: Callable[[], Any], synchronize: Callable[[], Any]) -> float:
    """Microseconds, the mean of ten."""
    for _ in range(WARM_UPS):
        call()
    times = []
    for _ in range(MEASURED):
        synchronize()
        start = perf_counter()
        call()
        synchronize()
        times.append((perf_counter() - start) * 1e6)
    return mean(times)


def row(place: Place, example: Example) -> tuple[str, ...]:
    if isinstance(place.k, Interpreted):
        size, op, synchronize = example.sizes[1], numpy_op(example.name), lambda: None
    else:
        import torch

        size, op, synchronize = SIZES.get(example.name, SIZE), torch_op(example.name), torch.cuda.synchronize
    arrays = [place.put(array) for array in example.inputs(np.random.default_rng(1), *size)]
    kernel = example.declare(place.k)
    out = example.call(kernel, place, *arrays)
    again = Place(place.name, place.k, place.put, lambda shape: out, place.get)  # both sides write what they have
    ours = timed(lambda: example.call(kernel, again, *arrays), synchronize)
    theirs = timed(lambda: op(*arrays, out=out), synchronize)
    shown = " × ".join(map(str, size))
    return (example.name, shown, f"{ours:.1f}", f"{theirs:.1f}", f"{ours / theirs:.2f}")


def main() -> None:
    with place_of(argparse.ArgumentParser(description=__doc__)) as place:
        head = HEAD
        if isinstance(place.k, Interpreted):
            head = ("kernel", "size", "interpreter µs", "NumPy µs", "ratio")
        rows = [head, *(row(place, example) for example in EXAMPLES)]
    widths = [max(len(cells[i]) for cells in rows) for i in range(len(HEAD))]
    for cells in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
