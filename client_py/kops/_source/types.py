"""Types of C and CUDA as dtypes, and which of them a declared dtype may stand for. libkops reads type names by the same
rules (client_c/src/base/dtype.c); tests/vectors/c_types.json has what both must answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from .._base.declarations import C_TYPES, DTYPES

__all__ = ["C_NAMES", "MAX_VECTOR", "TENSORS_ONLY", "VECTORS", "WORDS", "Type", "is_scoped", "is_type_name", "same_memory", "type_of"]

WORDS = ("signed", "unsigned", "char", "short", "int", "long", "__int128")
TENSORS_ONLY = ("f8_e4m3", "f8_e5m2")
MAX_VECTOR = 16  # bytes of alignment
_LANES = {
    "char": "i8", "uchar": "u8", "short": "i16", "ushort": "u16", "int": "i32", "uint": "u32", "long": "i64", "ulong": "u64",
    "longlong": "i64", "ulonglong": "u64", "float": "f32", "double": "f64",
}  # fmt: skip
VECTORS = {f"{name}{n}": (dtype, n) for name, dtype in _LANES.items() for n in (1, 2, 3, 4)} | {
    "half2": ("f16", 2), "__half2": ("f16", 2), "nv_half2": ("f16", 2), "nv_bfloat162": ("bf16", 2), "__nv_bfloat162": ("bf16", 2),
    "cuComplex": ("f32", 2), "cuFloatComplex": ("f32", 2), "cuDoubleComplex": ("f64", 2), "dim3": ("u32", 3),
    "__int128_t": ("i64", 2), "__uint128_t": ("u64", 2),
    "__nv_fp8x2_e4m3": ("f8_e4m3", 2), "__nv_fp8x4_e4m3": ("f8_e4m3", 4),
    "__nv_fp8x2_e5m2": ("f8_e5m2", 2), "__nv_fp8x4_e5m2": ("f8_e5m2", 4),
}  # fmt: skip
_SCOPE = re.compile(r"(?:::)?(?:(?:cuda::)?std::)?")
_COMPLEX = re.compile(r"(?:(?:thrust|c10|at)::)?complex<([\w: ]+)>")
_BYTES = re.compile(r"bytes<([1-9][0-9]{0,3})>")
# Names of dtypes in C.
C_NAMES = {
    "f32": "float", "f64": "double", "f16": "__half", "bf16": "__nv_bfloat16", "i8": "signed char", "u8": "unsigned char", "i16": "short",
    "u16": "unsigned short", "i32": "int", "u32": "unsigned int", "i64": "long long", "u64": "unsigned long long", "bool": "bool",
    "f8_e4m3": "__nv_fp8_e4m3", "f8_e5m2": "__nv_fp8_e5m2",
}  # fmt: skip
_INTEGER_FORMS: tuple[list[str], ...] = (
    [], ["char"], ["int"], ["short"], ["int", "short"], ["long"], ["int", "long"], ["long", "long"], ["int", "long", "long"],
    ["__int128"],
)  # fmt: skip


class Type(NamedTuple):
    """An element type: `lanes` is more than 1 for a vector, a complex number or a structure. That of a structure says nothing of its
    alignment."""

    dtype: str
    lanes: int = 1
    structure: bool = False


def is_type_name(word: str) -> bool:
    return word in WORDS or word in C_TYPES or word in VECTORS


def _integer(words: Sequence[str]) -> Type | None:
    """`unsigned long long int` and what else C allows, in any order."""
    rest = sorted(word for word in words if word not in ("signed", "unsigned"))
    if not words or len(words) - len(rest) > 1 or rest not in _INTEGER_FORMS:
        return None
    sign = "u" if "unsigned" in words else "i"
    if "__int128" in rest:
        return Type(f"{sign}64", 2)
    return Type(f"{sign}{8 if 'char' in rest else 16 if 'short' in rest else 64 if 'long' in rest else 32}")


def is_scoped(word: str) -> bool:
    """Whether a name with its namespaces means a type by them: there is no other `Half` than `at::Half`."""
    return "::" in (name := _SCOPE.sub("", word, count=1)) and name in C_TYPES


def type_of(words: Sequence[str], dtypes: bool = True) -> Type | None:
    """The type that the words say, each with its namespaces and template arguments (`thrust::complex<float>`); None if they say none
    that is known here. With `dtypes` the words that only kopsd understands count, too: the wire's names, and `bytes<16>`, a structure
    of 16 bytes."""
    if not words:
        return None
    first = _SCOPE.sub("", words[0], count=1)
    if len(words) == 1:
        if first in C_TYPES:
            return Type(C_TYPES[first])
        if first in VECTORS:
            return Type(*VECTORS[first])
        if found := _COMPLEX.fullmatch(first):
            part = type_of(found[1].split(), False)
            return Type(part.dtype, 2) if part is not None and part.lanes == 1 and _is_float(part.dtype) else None
        if dtypes and first in DTYPES:
            return Type(first)
        if dtypes and (found := _BYTES.fullmatch(first)):
            return Type("u8", int(found[1]), True)
    return _integer([first, *words[1:]])


def same_memory(declared: str, found: Type) -> bool:
    """Whether an array of the declared dtype is what a pointer to `found` points to.

    Signs of integers do not matter, since not every framework has unsigned ones. The bits of a float of at most two bytes
    may be in an integer of its size, since C has no type of its own for it. A vector of integers carries
    anything that fills it: kernels move data with `int4` without looking at it.
    """
    dtype, lanes, _ = found
    if declared == dtype:
        return True
    if lanes > 1 and not _is_float(dtype):
        return lanes * DTYPES[dtype] % DTYPES[declared] == 0
    if DTYPES[declared] != DTYPES[dtype]:
        return False
    floats = _is_float(declared) + _is_float(dtype)
    return floats == 0 or (floats == 1 and DTYPES[dtype] <= 2 and "bool" not in (declared, dtype))


def _is_float(dtype: str) -> bool:
    return dtype.lstrip("b").startswith("f")
