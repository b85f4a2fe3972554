"""As much of torch as the measures use, on the tests' stand-in driver: to try the measures out where there is no GPU.

Everything happens at once and on the host; no time that is measured with it means anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy
from standin_cuda import DeviceArray, Driver

float32 = numpy.float32
Tensor = DeviceArray


@cache
def _driver() -> Driver:
    return Driver()


def full(shape: tuple[int, ...], value: float, device: str = "cuda", dtype: Any = float32) -> Tensor:
    return _driver().array(numpy.full(shape, value, dtype))


def add(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    total = a.numpy() + b.numpy()
    if out is None:
        return _driver().array(total)
    out.driver.write(out.address, total.tobytes())
    _graph.record(lambda: add(a, b, out=out))
    return out


def as_tensor(other: Any, device: str = "cuda") -> Tensor:
    described = other.__cuda_array_interface__
    return DeviceArray(_driver(), described["data"][0], tuple(described["shape"]), numpy.dtype(described["typestr"]))


def equal(a: Tensor, b: Tensor) -> bool:
    return bool((a.numpy() == b.numpy()).all())


class _Graph:
    """Remembers calls while it is open, and repeats them."""

    def __init__(self) -> None:
        self.open = False
        self.calls: list[Callable[[], Any]] = []

    def record(self, call: Callable[[], Any]) -> None:
        if self.open:
            self.calls.append(call)

    def replay(self) -> None:
        for call in self.calls:
            call()


_graph = _Graph()


@contextmanager
def _capture(graph: _Graph) -> Iterator[None]:
    global _graph
    _graph, graph.open = graph, True
    try:
        yield
    finally:
        graph.open = False


cuda = SimpleNamespace(
    CUDAGraph=_Graph,
    graph=_capture,
    is_available=lambda: True,
    empty_cache=lambda: None,
    synchronize=lambda: _driver().synchronize(),
    get_device_name=lambda index=0: "stand-in",
)
