"""Tensors of tasks and solutions as bytes with a dtype: NumPy arrays and torch tensors become these, and become arrays again.

NumPy has no bfloat16 and no 8-bit floats of its own, so their bits are kept, and turned into numbers here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .._companions import DTYPES, NAMES, numbers_of, numpy
from ._errors import TaskFault

NARROW = ("f16", "bf16", "f8_e4m3", "f8_e5m2")  # of few digits
FLOATS = (*NARROW, "f32", "f64")
_BITS = {"bf16": "uint16", "f8_e4m3": "uint8", "f8_e5m2": "uint8", "bool": "uint8"}
_SHORT = {long: short for short, long in NAMES.items() if short in DTYPES}

# The distance from 1 to the next larger number.
EPS = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7, "f8_e4m3": 2.0**-3, "f8_e5m2": 2.0**-2}


class Tensor(NamedTuple):
    """`data` is contiguous, in NumPy's dtype, or of `bits_dtype(dtype)` where NumPy has none."""

    dtype: str  # the wire's name
    data: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.data.shape)

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes)


def bits_dtype(dtype: str) -> Any:
    """The NumPy dtype that holds the elements of a dtype."""
    return numpy.dtype(_BITS.get(dtype) or NAMES[dtype])


def _is_torch(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach")


def is_tensor(value: Any) -> bool:
    return isinstance(value, numpy.ndarray) or _is_torch(value)


def _of_torch(value: Any, name: str) -> Tensor:
    import torch

    short = _SHORT.get(str(value.dtype).partition(".")[2])
    if short is None:
        raise TaskFault(f"{name} is of {value.dtype}, which kernels here cannot have: use one of {' '.join(DTYPES)}")
    plain = value.detach().cpu().contiguous()
    if short in _BITS:
        plain = plain.view(torch.int16 if DTYPES[short] == 2 else torch.uint8)
    return Tensor(short, plain.numpy().view(bits_dtype(short)).copy())


def tensor_of(value: Any, name: str) -> Tensor:
    """A copy of a NumPy array or torch tensor. Raises TaskFault, which calls it `name`."""
    if _is_torch(value):
        return _of_torch(value, name)
    if not isinstance(value, (numpy.ndarray, numpy.generic)):
        raise TaskFault(f"{name} is of {type(value).__name__}; it must be a NumPy array or a torch tensor")
    array = numpy.asarray(value)
    short = _SHORT.get(array.dtype.name)
    if short is None:
        raise TaskFault(f"{name} is of {array.dtype}, which kernels here cannot have: use one of {' '.join(DTYPES)}")
    native = numpy.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)
    return Tensor(short, native.view(bits_dtype(short)) if short in _BITS else native)


def without_elements(value: Any) -> Any:
    """An array or torch tensor of the same dtype, on the same device: what `as_like` wants to know."""
    if _is_torch(value):
        import torch

        return torch.empty(0, dtype=value.dtype, device=value.device)
    return numpy.empty(0, numpy.asarray(value).dtype)


def as_like(tensor: Tensor, value: Any, double: bool = False) -> Any:
    """The tensor as `value` is: a NumPy array or a torch tensor of its own memory. `double`: floats become float64."""
    wide = double and tensor.dtype in FLOATS
    if _is_torch(value):
        import torch

        if wide:
            made = torch.from_numpy(floats_of(tensor).copy())
        elif tensor.dtype in _BITS and tensor.dtype != "bool":
            signed = numpy.int16 if DTYPES[tensor.dtype] == 2 else numpy.uint8
            made = torch.from_numpy(tensor.data.view(signed).copy()).view(value.dtype)
        else:
            made = torch.from_numpy(tensor.data.view(bool).copy() if tensor.dtype == "bool" else tensor.data.copy())
        return made.to(value.device)
    if wide:
        return floats_of(tensor).copy()
    return tensor.data.copy().view(numpy.asarray(value).dtype.newbyteorder("=")) if tensor.dtype in _BITS else tensor.data.copy()


_OF_BYTES = {dtype: numbers_of(dtype) for dtype in ("f8_e4m3", "f8_e5m2")}


def floats_of(tensor: Tensor) -> Any:
    """The numbers of a tensor of floats, in float64."""
    bits = tensor.data
    if tensor.dtype == "bf16":
        with numpy.errstate(invalid="ignore"):  # signalling NaNs
            return (bits.astype(numpy.uint32) << 16).view(numpy.float32).astype(numpy.float64)
    if tensor.dtype in _OF_BYTES:
        return _OF_BYTES[tensor.dtype][bits]
    with numpy.errstate(invalid="ignore"):  # signalling NaNs
        return bits.astype(numpy.float64)


def numbers(tensor: Tensor) -> Any:
    """float64 of floats; everything else as it is, since float64 has not all integers."""
    return floats_of(tensor) if tensor.dtype in FLOATS else tensor.data
