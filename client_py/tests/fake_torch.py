"""As much of torch as the adapter touches: CPU tensors over NumPy, CUDA tensors over the stand-in driver's memory.

The names and the meanings are torch's; what the adapter must not rely on is absent.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy


class dtype:
    def __init__(self, name: str, itemsize: int) -> None:
        self.name, self.itemsize = name, itemsize

    def __repr__(self) -> str:
        return f"torch.{self.name}"


float32, float64, float16, bfloat16, int64, bool = (
    dtype("float32", 4), dtype("float64", 8), dtype("float16", 2), dtype("bfloat16", 2), dtype("int64", 8), dtype("bool", 1),
)  # fmt: skip
strided, sparse_coo = "torch.strided", "torch.sparse_coo"


class Size(tuple):
    pass


class device:
    def __init__(self, type: str, index: int | None = None) -> None:
        self.type, self.index = type, index

    def __repr__(self) -> str:
        return self.type


def _numpy_dtype(kind: dtype) -> Any:
    return numpy.dtype("uint16" if kind is bfloat16 else kind.name)


def is_grad_enabled() -> bool:
    return grad_enabled


grad_enabled = True


copied: list[int] = []  # bytes of each copy_, which takes all of torch's threads


class Tensor:
    """`array` is the elements of a CPU tensor, or a DeviceArray."""

    def __init__(self, array: Any, kind: dtype, where: device, layout: str = strided) -> None:
        self.array, self.dtype, self.device, self.layout = array, kind, where, layout
        self.negated = False
        self.requires_grad = False
        self._version = 0
        self.inference = False

    @property
    def shape(self) -> Size:
        return Size(self.array.shape)

    def _byte_strides(self) -> tuple[int, ...]:
        return tuple(self.array._byte_strides() if self.device.type == "cuda" else self.array.strides)

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.dtype.itemsize for s in self._byte_strides())

    def is_contiguous(self) -> bool:
        step = 1
        for n, s in reversed(list(zip(self.shape, self.stride(), strict=True))):
            if n != 1 and s != step:
                return False
            step *= n
        return True

    def data_ptr(self) -> int:
        return int(self.array.address if self.device.type == "cuda" else self.array.__array_interface__["data"][0])

    def numel(self) -> int:
        return int(self.array.size)

    def element_size(self) -> int:
        return self.dtype.itemsize

    def is_inference(self) -> builtins.bool:
        return self.inference

    def get_device(self) -> int:
        return self.device.index if self.device.type == "cuda" else -1  # type: ignore[return-value]

    def is_neg(self) -> bool:
        return self.negated

    def resolve_neg(self) -> Tensor:
        return Tensor(-self.array, self.dtype, self.device)

    def detach(self) -> Tensor:
        return self

    def copy_(self, other: Tensor) -> Tensor:
        copied.append(self.numel() * self.element_size())
        self.array[...] = other.array
        self._version += 1
        return self

    def narrow(self, dim: int, start: int, length: int) -> Tensor:
        return self[(slice(None),) * dim + (slice(start, start + length),)]

    def view(self, shape: tuple[int, ...]) -> Tensor:
        return Tensor(self.array.reshape(shape), self.dtype, self.device)

    def resize_(self, shape: tuple[int, ...]) -> Tensor:
        self.array = self.array.reshape(shape)
        return self

    def t(self) -> Tensor:
        return Tensor(self.array.T, self.dtype, self.device)

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor(self.array[index], self.dtype, self.device)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.array[index] = value


def tensor(array: Any) -> Tensor:
    array = numpy.asarray(array)
    return Tensor(array, globals()[array.dtype.name], device("cpu"))


def frombuffer(buffer: Any, *, dtype: dtype, count: int = -1, offset: int = 0) -> Tensor:
    assert count != 0
    return Tensor(numpy.frombuffer(buffer, _numpy_dtype(dtype), count, offset), dtype, device("cpu"))


def empty(shape: tuple[int, ...], *, dtype: dtype, device: Any = None) -> Tensor:
    device = device or globals()["device"]("cpu")
    if device.type == "cpu":
        return Tensor(numpy.empty(shape, _numpy_dtype(dtype)), dtype, device)
    return Tensor(cuda.driver.empty(tuple(shape), _numpy_dtype(dtype)), dtype, device)


def full(shape: tuple[int, ...], value: float, *, dtype: dtype, device: Any) -> Tensor:
    """On CUDA."""
    cuda.fills.append(value)
    return Tensor(cuda.driver.array(numpy.full(shape, value, _numpy_dtype(dtype))), dtype, device)


def empty_like(other: Tensor) -> Tensor:
    return empty(other.shape, dtype=other.dtype, device=other.device)


def _increment_version(changed: Tensor) -> None:
    changed._version += 1


autograd = SimpleNamespace(graph=SimpleNamespace(increment_version=_increment_version))


class _Cuda(SimpleNamespace):
    driver: Any = None
    synchronized: list[int]
    fills: list[float]  # values that `full` has written
    awaited: int  # times that a stream made here was waited for
    handle: int

    def current_device(self) -> int:
        return 0

    def Stream(self, where: device) -> Any:
        return SimpleNamespace(synchronize=lambda: setattr(self, "awaited", self.awaited + 1))

    @contextlib.contextmanager
    def stream(self, made: Any) -> Iterator[None]:
        before, self.handle = self.handle, 0
        try:
            yield
        finally:
            self.handle = before

    def current_stream(self, index: int) -> Any:
        return SimpleNamespace(synchronize=lambda: self.synchronized.append(index), cuda_stream=self.handle)


cuda = _Cuda(synchronized=[], fills=[], awaited=0, handle=0)
_C = SimpleNamespace()  # without what only some versions have
