"""Element types as NumPy stores them: bf16 as the upper half of a float32, in uint16; 8-bit floats as their bytes, since no op
computes with them."""

from __future__ import annotations

import numpy as np

STORAGE = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": np.uint16, "i8": np.int8, "u8": np.uint8, "i16": np.int16,
    "u16": np.uint16, "i32": np.int32, "u32": np.uint32, "i64": np.int64, "u64": np.uint64, "bool": np.bool_, "f8_e4m3": np.uint8,
    "f8_e5m2": np.uint8,
}  # fmt: skip
FLOATS = ("f32", "f64", "f16", "bf16")
INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")


def size(dtype: str) -> int:
    return np.dtype(STORAGE[dtype]).itemsize


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """float64 → storage, rounded to nearest even."""
    if dtype != "bf16":
        return values.astype(STORAGE[dtype])
    bits = np.atleast_1d(values).astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype(np.uint16).reshape(np.shape(values))


def decode(stored: np.ndarray, dtype: str) -> np.ndarray:
    """Storage → float64, exactly; integers stay as they are, since NumPy's wrap around as the ops' do."""
    if dtype in INTEGERS:
        return stored.copy()
    if dtype != "bf16":
        return stored.astype(np.float64)
    bits = np.atleast_1d(stored).astype(np.uint32) << 16
    return bits.view(np.float32).astype(np.float64).reshape(np.shape(stored))
