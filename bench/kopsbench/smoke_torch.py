"""As much of torch as the measures use, on the tests' stand-in driver: to try the measures out where there is no GPU.

The tensors are those of the client's tests; what is added here computes on the host. No time that is measured with it means
anything.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
from standin_cuda import DeviceArray, Driver

sys.path.append(str(Path(__file__).resolve().parents[2] / "client_py" / "tests"))
import fake_torch  # noqa: E402

sys.modules["torch"] = fake_torch
_driver = fake_torch.cuda.driver = Driver()
Tensor = fake_torch.Tensor
Tensor.__cuda_array_interface__ = property(lambda tensor: tensor.array.__cuda_array_interface__)


def _tensor(array: DeviceArray) -> Tensor:
    return Tensor(array, fake_torch.float32, fake_torch.device("cuda", 0))


def full(shape: tuple[int, ...], value: float, device: str = "cuda") -> Tensor:
    return _tensor(_driver.array(numpy.full(shape, value, numpy.float32)))


def add(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    total = a.array.numpy() + b.array.numpy()
    if out is None:
        return _tensor(_driver.array(total))
    _driver.write(out.array.address, total.tobytes())
    if _capturing is not None:
        _capturing.append(lambda: add(a, b, out=out))
    return out


def as_tensor(other: Any, device: str = "cuda") -> Tensor:
    described = other.__cuda_array_interface__
    return _tensor(DeviceArray(_driver, described["data"][0], tuple(described["shape"]), numpy.dtype(described["typestr"]), keep=other))


def equal(a: Tensor, b: Tensor) -> bool:
    return bool((a.array.numpy() == b.array.numpy()).all())


_capturing: list[Callable[[], Any]] | None = None  # the calls of the graph that is open


class _Graph:
    """Remembers calls while it is open, and repeats them."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []

    def replay(self) -> None:
        for call in self.calls:
            call()


@contextmanager
def _capture(graph: _Graph) -> Iterator[None]:
    global _capturing
    _capturing = graph.calls
    try:
        yield
    finally:
        _capturing = None


def _mem_get_info() -> tuple[int, int]:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


cuda = SimpleNamespace(
    CUDAGraph=_Graph,
    graph=_capture,
    is_available=lambda: True,
    empty_cache=lambda: None,
    mem_get_info=_mem_get_info,
    synchronize=lambda: _driver.synchronize(),
    get_device_name=lambda index=0: "stand-in",
)
