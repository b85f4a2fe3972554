"""Numbers as scalar arguments of kernels: which of them a parameter takes, and its bytes. The daemon has the same rules
(daemon/core/kernel.c); both run tests/vectors/scalars.json."""

from __future__ import annotations

import math
import operator
import struct
from typing import Any

from .._base.declarations import DTYPES
from .._base.errors import KopsError, OutOfRange, WrongType

__all__ = ["convert", "is_plain", "structure", "to_bytes"]

_SIGNED = {f"i{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)}
_INTEGERS = _SIGNED | {f"u{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)} | {"bool": (0, 1)}
# The least magnitudes that are rounded to infinity.
_TOO_LARGE = {"f16": 65520.0, "bf16": 2.0**128 - 2.0**119, "f32": 2.0**128 - 2.0**103, "f64": math.inf}
_NONE = (1, 0)
_FORMS = {
    "f16": "e", "f32": "f", "f64": "d", "i8": "b", "u8": "B", "i16": "h", "u16": "H", "i32": "i", "u32": "I", "i64": "q", "u64": "Q",
    "bool": "?",
}  # fmt: skip


def _refusal(kind: type[KopsError], where: str, key: str, why: str, **detail: Any) -> KopsError:
    return kind(f"{where} {why}", {"key": key, **detail})


def _real(dtype: str, value: Any, where: str, key: str) -> float:
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        real = float(value)
    except OverflowError:
        raise _refusal(OutOfRange, where, key, f"is too large for {dtype}: {value!r:.40}") from None
    except (TypeError, ValueError, RuntimeError):
        raise _refusal(WrongType, where, key, f"must be a number ({dtype}), not {value!r:.80}") from None
    if abs(real) >= _TOO_LARGE[dtype] and math.isfinite(real):
        raise _refusal(OutOfRange, where, key, f"is too large for {dtype}: {real}")
    return real


def _whole(value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        item = getattr(value, "item", None)  # NumPy's bools are no integers
        number = item() if item is not None else None
        if isinstance(number, bool):
            return number
        raise


def is_plain(dtype: str, value: Any) -> bool:
    """Whether it is the number itself that `convert` gives: so it is for most."""
    kind = type(value)
    if kind is int:
        low, high = _INTEGERS.get(dtype, _NONE)
        return low <= value <= high and dtype != "bool"
    return kind is float and abs(value) < _TOO_LARGE.get(dtype, 0.0)


def convert(dtype: str, value: Any, where: str, key: str) -> int | float | bool:
    """A number as a parameter of that type wants it; `where` and `key` name it in errors."""
    if dtype in _TOO_LARGE:
        return _real(dtype, value, where, key)
    try:
        number = _whole(value)
    except (TypeError, ValueError, RuntimeError):
        raise _refusal(WrongType, where, key, f"must be a whole number ({dtype}), not {value!r:.80}") from None
    low, high = _INTEGERS[dtype]
    if not low <= number <= high:
        why = f"does not fit {dtype}, {low} to {high}: {number}"
        raise _refusal(OutOfRange, where, key, why, min=low, max=high)
    return bool(number) if dtype == "bool" else number


def _lanes(dtype: str, lanes: int, value: Any) -> bytes | list[Any] | None:
    """What a structure's argument is: its bytes, or the numbers in it; None for anything else."""
    kind = getattr(getattr(value, "dtype", None), "kind", "c" if isinstance(value, complex) else "")
    if kind == "c" and lanes == 2 and dtype in _TOO_LARGE and not getattr(value, "ndim", 0):
        number = complex(value)
        return [number.real, number.imag]
    if kind and kind in "biuf" and getattr(value, "ndim", 0) == 1 and hasattr(value, "tolist"):
        return list(value.tolist())
    if hasattr(value, "tobytes"):  # NumPy's: the bytes of a machine of the other order, or addresses of objects, are no use
        return value.tobytes() if value.dtype.isnative and not value.dtype.hasobject else None
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, int) and lanes == 2 and dtype in ("i64", "u64") and not isinstance(value, bool):
        try:
            return value.to_bytes(16, "little", signed=dtype == "i64")
        except OverflowError:
            return None
    try:
        return memoryview(value).tobytes()  # bytes, a structure of ctypes
    except TypeError:
        return None


def structure(dtype: str, lanes: int, value: Any, where: str, key: str) -> bytes:
    """The bytes of a parameter of several numbers: a structure, vector or complex number."""
    found, size = _lanes(dtype, lanes, value), lanes * DTYPES[dtype]
    if isinstance(found, list) and len(found) == lanes:
        found = b"".join(to_bytes(dtype, convert(dtype, one, f"{where}[{i}]", key)) for i, one in enumerate(found))
    if isinstance(found, bytes) and len(found) == size:
        return found
    given = f"{len(found)} bytes" if isinstance(found, bytes) else f"{value!r:.80}"
    wanted = f"a structured scalar of NumPy's or bytes, so large, or {lanes} numbers of {dtype}"
    why = f"is a structure of {size} bytes: pass {wanted}, not {given}"
    raise _refusal(WrongType, where, key, why)


def _bfloat16(value: float) -> bytes:
    """Rounded to nearest, ties to even, in one step."""
    if math.isfinite(value) and value:
        step = max(math.frexp(value)[1], -125) - 8  # exponent of the last bit
        value = math.copysign(math.ldexp(float(round(math.ldexp(value, -step))), step), value)
    upper = struct.pack("=f", value)[2:]
    return upper if value == value else bytes((upper[0] | 0x40, upper[1]))


def to_bytes(dtype: str, number: float) -> bytes:
    """What `convert` gave, as the kernel's parameter has it."""
    return _bfloat16(number) if dtype == "bf16" else struct.pack("=" + _FORMS[dtype], number)
