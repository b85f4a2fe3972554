"""The dtypes by the names that frameworks have for them. `FLOATS` are those whose arithmetic counts as
floating-point operations."""

from __future__ import annotations

FLOATS = ("f32", "f64", "f16", "bf16", "f8_e4m3", "f8_e5m2")

# The wire's name -> NumPy's, which torch and others have as well.
NAMES = {
    "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16",
    "i8": "int8", "u8": "uint8", "i16": "int16", "u16": "uint16", "i32": "int32", "u32": "uint32", "i64": "int64", "u64": "uint64",
    "bool": "bool", "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2",
}  # fmt: skip

OF_ML_DTYPES = ("bfloat16", "float8_e4m3fn", "float8_e5m2")

TYPESTRS = {
    "<f4": "f32", "<f8": "f64", "<f2": "f16", "|i1": "i8", "|u1": "u8", "<i2": "i16", "<u2": "u16", "<i4": "i32", "<u4": "u32",
    "<i8": "i64", "<u8": "u64", "|b1": "bool",
}  # fmt: skip

# DLPack's type code and bits.
DLPACK = {
    (2, 32): "f32", (2, 64): "f64", (2, 16): "f16", (4, 16): "bf16", (0, 8): "i8", (1, 8): "u8", (0, 16): "i16", (1, 16): "u16",
    (0, 32): "i32", (1, 32): "u32", (0, 64): "i64", (1, 64): "u64", (6, 8): "bool", (10, 8): "f8_e4m3", (12, 8): "f8_e5m2",
}  # fmt: skip
