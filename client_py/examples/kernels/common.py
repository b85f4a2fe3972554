"""What the examples share: where a kernel runs, and a check of its results.

A place makes arrays and has `k`, on which kernels are declared: a client of the daemon, with torch tensors on the GPU,
or the interpreter, with NumPy arrays on the CPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
if (HERE.parents[1] / "kops").is_dir():
    sys.path.insert(0, str(HERE.parents[1]))  # in a source tree, where kops is not installed

import kops  # noqa: E402


def source(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Place:
    name: str
    k: Any
    put: Callable[[Any], Any]  # a NumPy array to this place
    empty: Callable[[Iterable[int]], Any]  # a new float32 array of that shape
    get: Callable[[Any], Any]  # to a NumPy array


@contextmanager
def on_gpu(socket: str | None = None) -> Iterator[Place]:
    try:
        import torch
    except ModuleNotFoundError:
        sys.exit("torch is not installed: pip install torch, or add --interpret to run on the CPU, without a GPU and a daemon")
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU here: add --interpret to run on the CPU, without a GPU and a daemon")
    with kops.connect(socket) as k:
        yield Place(
            torch.cuda.get_device_name(),
            k,
            put=lambda array: torch.from_numpy(array).cuda(),
            empty=lambda shape: torch.empty(tuple(shape), device="cuda"),
            get=lambda tensor: tensor.cpu().numpy(),
        )


class Interpreted:
    """Declares kernels as a client does; a call runs on the CPU, in this process."""

    def kernel(self, *declared: Any, **geometry: Any) -> Callable[..., Any]:
        return kops.kernel(*declared, **geometry).interpret


@contextmanager
def interpreted() -> Iterator[Place]:
    yield Place(
        "interpreter",
        Interpreted(),
        put=lambda array: array.copy(),
        empty=lambda shape: np.full(tuple(shape), np.nan, np.float32),  # NaN: a missed element is noticed
        get=lambda array: array,
    )


@dataclass(frozen=True)
class Example:
    """A kernel with what is needed to run and to check it."""

    name: str
    declare: Callable[[Any], Any]  # client -> kernel
    call: Callable[..., Any]  # kernel, place, inputs -> output
    inputs: Callable[..., tuple[Any, ...]]  # random generator, size -> NumPy arrays
    expected: Callable[..., Any]  # inputs -> expected output
    sizes: tuple[tuple[int, ...], ...]  # small and odd ones, and empty ones
    large: tuple[int, ...]

    def check(self, place: Place, kernel: Any, size: tuple[int, ...]) -> float:
        """Runs it once on random data; returns the largest error. Raises where the result is wrong."""
        arrays = self.inputs(np.random.default_rng(7), *size)
        found = place.get(self.call(kernel, place, *(place.put(array) for array in arrays)))
        wanted = self.expected(*arrays)
        if found.shape != wanted.shape:
            raise AssertionError(f"{self.name}, {size}: the shape is {found.shape}, not {wanted.shape}")
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4, err_msg=f"{self.name}, {size}")
        return float(np.abs(found - wanted).max(initial=0.0))


def vector(random: np.random.Generator, *shape: int) -> Any:
    return random.standard_normal(shape, dtype=np.float32)


def place_of(parser: argparse.ArgumentParser) -> Any:
    """Reads the command line: where to run."""
    parser.add_argument("--interpret", action="store_true", help="run on the CPU, without a daemon and without a GPU")
    parser.add_argument("--socket", help="the daemon's socket (default: where kops.connect() looks)")
    arguments = parser.parse_args()
    return interpreted() if arguments.interpret else on_gpu(arguments.socket)


def main(example: Example, about: str | None) -> None:
    with place_of(argparse.ArgumentParser(description=about)) as place:
        kernel = example.declare(place.k)
        for size in example.sizes if isinstance(place.k, Interpreted) else (*example.sizes, example.large):
            error = example.check(place, kernel, size)
            print(f"{example.name} {' × '.join(map(str, size))} on {place.name}: right, largest error {error:.2g}")
