"""Element types as NumPy stores them: bf16 as the upper half of a float32, in uint16; 8-bit floats as their bytes."""

from __future__ import annotations

import numpy as np

STORAGE = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": np.uint16, "i8": np.int8, "u8": np.uint8, "i16": np.int16,
    "u16": np.uint16, "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64, "bool": np.bool_, "f8_e4m3": np.uint8,
    "f8_e5m2": np.uint8,
}  # fmt: skip
FLOATS = ("f32", "f64", "f16", "bf16", "f8_e4m3", "f8_e5m2")
INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")


def _of_bits(bias: int, mantissa: int, special: bool) -> np.ndarray:
    """The values of all 256 bytes, from their fields. `special`: the largest exponent is infinity and NaN, else one code is NaN."""
    values = np.empty(256)
    for code in range(256):
        exponent, fraction = code >> mantissa & ((1 << (7 - mantissa)) - 1), code & ((1 << mantissa) - 1)
        value = (fraction + (1 << mantissa if exponent else 0)) * 2.0 ** (max(exponent, 1) - bias - mantissa)
        if special and exponent == (1 << (7 - mantissa)) - 1:
            value = np.nan if fraction else np.inf
        if not special and code & 0x7F == 0x7F:
            value = np.nan
        values[code] = -value if code & 0x80 else value
    return values


EIGHTHS = {"f8_e4m3": _of_bits(7, 3, False), "f8_e5m2": _of_bits(15, 2, True)}


def _encode_eighth(values: np.ndarray, dtype: str) -> np.ndarray:
    """To the nearest finite number, of two the one whose code is even."""
    finite = EIGHTHS[dtype][:128][np.isfinite(EIGHTHS[dtype][:128])]
    magnitude = np.minimum(np.abs(values), finite[-1])
    above = np.clip(np.searchsorted(finite, magnitude), 1, len(finite) - 1)
    low, high = magnitude - finite[above - 1], finite[above] - magnitude
    code = np.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above)
    return (code | np.where(np.signbit(values), 0x80, 0)).astype(np.uint8)


def size(dtype: str) -> int:
    return np.dtype(STORAGE[dtype]).itemsize


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """float64 → storage, rounded to nearest even."""
    if dtype in EIGHTHS:
        return _encode_eighth(np.asarray(values), dtype)
    if dtype != "bf16":
        return values.astype(STORAGE[dtype])
    bits = np.atleast_1d(values).astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype(np.uint16).reshape(np.shape(values))


def decode(stored: np.ndarray, dtype: str) -> np.ndarray:
    """Storage → float64, exactly; integers stay as they are, since NumPy's wrap around as the ops' do."""
    if dtype in INTEGERS:
        return stored.copy()
    if dtype in EIGHTHS:
        return np.asarray(EIGHTHS[dtype][stored])
    if dtype != "bf16":
        return stored.astype(np.float64)
    bits = np.atleast_1d(stored).astype(np.uint32) << 16
    return bits.view(np.float32).astype(np.float64).reshape(np.shape(stored))
