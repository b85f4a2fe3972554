"""Each kernel's table, trace and report: how long it takes and how sure that is, where the time of its calls goes, how far it is
from what the device can do. Without a GPU the daemon's own ops that compute the same, on the CPU: an interpreter's times mean nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import Example, Place, on_gpu  # isort: skip (it finds kops in a source tree)

import kops
import numpy as np
from five import EXAMPLES
from kops.profiler import profile, record_function

CALLS = 20  # calls in the trace
SIZES = {"square_matrix": (1024, 1024), "gemm": (512, 512, 512)}
SIZE = (1 << 20,)

# An op of the daemon's own that computes what the kernel computes, on the same inputs.
SAME: dict[str, Callable[..., tuple[Any, ...]]] = {
    "square_matrix": lambda a: ("square", a),
    "add2": lambda a, b: ("add", a, b),
    "gemm": lambda a, b: ("gemm", a, b),
    "custom": lambda a: ("add", a, a),
    "vector_add": lambda a, b: ("add", a, b),
}


def has_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


@contextmanager
def on_cpu(socket: str | None = None) -> Iterator[Place]:
    with kops.connect(socket) as k:
        yield Place("the CPU", k, put=k.array, empty=k.empty, get=lambda array: array)


class Noted:
    """In place of a kernel: what it is called with."""

    arguments: tuple[Any, ...] = ()

    def __call__(self, *arguments: Any) -> None:
        self.arguments = arguments


def prepare(example: Example, place: Place, gpu: bool) -> tuple[str, Callable[[], Any], Callable[..., kops.Profile]]:
    """The name in tables, one call, and the profile, all on the same arrays."""
    size = example.large if gpu else SIZES.get(example.name, SIZE)
    arrays = [place.put(array) for array in example.inputs(np.random.default_rng(1), *size)]
    if gpu:
        kernel, noted = example.declare(place.k), Noted()
        example.call(noted, place, *arrays)
        return kernel.name, lambda: kernel(*noted.arguments), lambda **how: kernel.profile(*noted.arguments, **how)
    op, *inputs = SAME[example.name](*arrays)
    out = place.k.run(op, *inputs)
    return op, lambda: place.k.run(op, *inputs, out=out), lambda **how: place.k.profile(op, *inputs, out=out, **how)


def measure(example: Example, place: Place, gpu: bool, folder: Path, socket: str | None, peaks: Any) -> Any:
    """One kernel: prints its tables, writes its trace and its report. Returns the device's peaks, which the next report takes."""
    name, call, profiled = prepare(example, place, gpu)
    print(f"---- {example.name}: {profiled(warmup=3, repeat=100)}\n")
    with profile(socket=socket) as recorded, record_function(example.name):
        for _ in range(CALLS):
            call()
        place.k.synchronize()
    print(recorded.key_averages().table(sort_by="total"), "\n")
    recorded.export_chrome_trace(folder / f"{example.name}.json")
    return kops.report(place.k, folder / f"{example.name}.html", op=name, peaks=peaks, profile=recorded)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", help="the daemon's socket (default: where kops.connect() looks)")
    parser.add_argument("--folder", type=Path, default=Path("profiled"), help="for the traces and reports (default: profiled)")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    gpu, peaks = has_gpu(), None
    with (on_gpu if gpu else on_cpu)(arguments.socket) as place:
        print(f"on {place.name}\n")
        for example in EXAMPLES:
            peaks = measure(example, place, gpu, arguments.folder, arguments.socket, peaks)
    print(f"{arguments.folder}: a trace (.json, for ui.perfetto.dev) and a report (.html) of each kernel")


if __name__ == "__main__":
    main()
