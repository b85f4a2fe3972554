"""Tensors of tasks and solutions as bytes with a dtype: NumPy arrays and torch tensors become these, and become arrays again. Also the
rubbish that lies in memory before a solution runs, and whether tensors are equal.

NumPy has no bfloat16 and no 8-bit floats of its own, so their bits are kept, and turned into numbers here.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from .._companions import DTYPES, NAMES, native, numbers_of, numpy
from ._verdict import TaskFault

NARROW = ("f16", "bf16", "f8_e4m3", "f8_e5m2")  # dtypes of few digits
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


# Rubbish: different each time, in outputs and scratch before a solution runs

PERIOD = 65_521  # elements after which the rubbish repeats: a prime, so that no layout meets it

# NaNs whose other bits are drawn: all exponent bits and the quiet bit.
NANS = {
    "f16": (0x7E00, 0x01FF, "u2"), "bf16": (0x7FC0, 0x003F, "u2"), "f32": (0x7FC00000, 0x003FFFFF, "u4"),
    "f64": (0x7FF8 << 48, (1 << 51) - 1, "u8"),
}  # fmt: skip


def _period(dtype: str, count: int, rng: Any, nan: bool) -> Any:
    """The bytes of rubbish that repeat."""
    if nan and dtype in NANS:
        base, free, unsigned = NANS[dtype]
        made = rng.integers(1, free, min(count, PERIOD), numpy.dtype(unsigned), endpoint=True)
        return (made | numpy.array(base, unsigned)).astype(unsigned).view(numpy.uint8)
    low = 2 if dtype == "bool" else 0  # no bool has these values
    return rng.integers(low, 256, min(count, PERIOD) * bits_dtype(dtype).itemsize, numpy.uint8)


def fill(target: Any, dtype: str, rng: Any, nan: bool) -> None:
    """Writes such elements to an array of bytes: NaNs, or random bytes."""
    if not target.size:
        return
    period = _period(dtype, target.size // bits_dtype(dtype).itemsize, rng, nan)
    whole = target.size // period.size * period.size
    target[:whole].reshape(-1, period.size)[:] = period
    target[whole:] = period[: target.size - whole]


def poison(dtype: str, shape: tuple[int, ...], rng: Any, nan: bool) -> Any:
    """An array of rubbish."""
    made = numpy.empty(shape, bits_dtype(dtype))
    fill(made.reshape(-1).view(numpy.uint8), dtype, rng, nan)
    return made


# Comparing, in one pass without the GIL where the package's compiled part is there, else in NumPy, by parts that fit into a cache

PART = 1 << 15  # elements


class Errors(NamedTuple):
    """Errors of a tensor of floats: elements that are wrong, the sum of the squares of the errors of those that are finite, and elements
    of at least some size that are further off than `rtol` of themselves, so that `atol` alone may allow them."""

    wrong: int
    squares: float
    by_atol: int


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def sum_of_squares(values: Any) -> float:
    """The sum of a vector's squares. Not by BLAS, whose threads go on spinning for a while after each call, and take the processors from
    all that is prepared beside the GPU."""
    return float(numpy.einsum("i,i->", values, values))


def same_bytes(a: Any, b: Any) -> bool:
    """Whether contiguous arrays of one size in bytes are equal."""
    if a.nbytes != b.nbytes or not (a.flags.c_contiguous and b.flags.c_contiguous):
        raise ValueError("arrays of different sizes, or with gaps")
    if native is not None:
        return bool(native.compare_bytes(_address(a), _address(b), a.nbytes))
    flat = [one.reshape(-1).view(numpy.uint8) for one in (a, b)]
    return all(numpy.array_equal(flat[0][at : at + 8 * PART], flat[1][at : at + 8 * PART]) for at in range(0, a.nbytes, 8 * PART))


def float_errors(got: Tensor, want: Any, rtol: float, atol: float, least: float = math.inf) -> Errors:
    """Counts the errors. `want` is of float64. An element is right within `atol + rtol * |want|`, the same infinity, or NaN for NaN.
    `least`: the size from which on elements count for `by_atol`."""
    if want.dtype != numpy.float64 or want.shape != got.data.shape or not (want.flags.c_contiguous and got.data.flags.c_contiguous):
        raise ValueError("what is right is float64 of the same shape, without gaps")
    if native is not None:
        found = native.compare_floats(got.dtype, _address(got.data), _address(want), want.size, rtol, atol, least)
        if found is not None:
            return Errors(*found)
    sums = [0, 0.0, 0]
    flat, right = got.data.reshape(-1), want.reshape(-1)
    with numpy.errstate(all="ignore"):
        for at in range(0, right.size, PART):
            found = _part(floats_of(Tensor(got.dtype, flat[at : at + PART])), right[at : at + PART], rtol, atol, least)
            sums = [one + more for one, more in zip(sums, found)]
    return Errors(int(sums[0]), sums[1], int(sums[2]))


def _part(got: Any, want: Any, rtol: float, atol: float, least: float) -> Errors:
    far = numpy.abs(got - want)
    allowed = numpy.abs(want)
    counts = allowed >= least
    allowed *= rtol
    counts &= far > allowed
    allowed += atol
    right = far <= allowed
    squares = sum_of_squares(far)
    if not numpy.isfinite(squares):
        finite = numpy.isfinite(got) & numpy.isfinite(want)
        right = numpy.where(finite, right, (got == want) | (numpy.isnan(got) & numpy.isnan(want)))
        counts &= finite
        far[~finite] = 0
        squares = sum_of_squares(far)
    return Errors(int(right.size - numpy.count_nonzero(right)), squares, int(numpy.count_nonzero(counts)))
