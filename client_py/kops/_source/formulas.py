"""Formulas of users as parts of kernels: their operands, the types of these, and the C++ that surrounds them.

An operand is declared as `T x` or `float x`: a capital letter, digits after it or not, stands for the dtype that a call has for it.
Halves and 8-bit floats are `float` in a formula, and rounded once where a result is written.

`Layout`s: loops over several arrays at once, by NumPy's broadcasting of their strides, with as few dimensions as can be.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from .._base.declarations import KERNEL_WORDS
from .._base.dtypes import NAMES
from .._base.errors import BadArgument, DtypeMismatch
from .tokens import NAME, tokens
from .types import C_NAMES, TENSORS_ONLY, is_type_name, type_of

NARROW = 2**31  # sizes and offsets below it need 32 bits


class Loop(NamedTuple):
    """`strides` has those of each array, in elements, for each of `sizes`; the last dimension is the innermost."""

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]

    @property
    def narrow(self) -> bool:
        """Whether 32 bits hold every index and offset."""
        count = 1
        for size in self.sizes:
            count *= size
        furthest = (sum((n - 1) * s for n, s in zip(self.sizes, strides)) for strides in self.strides)
        return count < NARROW and all(reach < NARROW for reach in furthest) and all(s < NARROW for one in self.strides for s in one)

    def dense(self, array: int) -> bool:
        """Whether an array's elements lie one after the other in the loop's order."""
        step = 1
        for size, stride in zip(reversed(self.sizes), reversed(self.strides[array])):
            if stride != step:
                return False
            step *= size
        return True


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    result, step = [], 1
    for size in reversed(shape):
        result.append(step)
        step *= size
    return tuple(reversed(result))


def broadcast_strides(shape: Sequence[int], strides: Sequence[int] | None, to: Sequence[int]) -> tuple[int, ...]:
    """An array's strides in a larger shape: 0 where it is repeated."""
    own = row_major(shape) if strides is None else strides
    repeated = [0 if n == 1 else s for n, s in zip(shape, own)]
    return (0,) * (len(to) - len(shape)) + tuple(repeated)


def loop(sizes: Sequence[int], strides: Sequence[Sequence[int]]) -> Loop:
    """Without dimensions of one element, and with neighbours as one where all arrays step through both alike."""
    kept: list[tuple[int, tuple[int, ...]]] = []
    for i, size in enumerate(sizes):
        steps = tuple(one[i] for one in strides)
        if size == 1:
            continue
        if kept and all(outer == inner * size for outer, inner in zip(kept[-1][1], steps)):
            kept[-1] = (kept[-1][0] * size, steps)
        else:
            kept.append((size, steps))
    return Loop(tuple(size for size, _ in kept), tuple(tuple(steps[a] for _, steps in kept) for a in range(len(strides))))


__all__ = ["Declared", "Types", "c_string", "compute_type", "formula", "headers", "names_in", "operands", "packed", "unpacked"]

_PLACEHOLDER = re.compile(r"[A-Z][0-9]*")
_LONG_NAMES = {long: short for short, long in NAMES.items()} | {"float8_e4m3": "f8_e4m3"}
_HEADERS = {"f16": "cuda_fp16.h", "bf16": "cuda_bf16.h", "f8_e4m3": "cuda_fp8.h", "f8_e5m2": "cuda_fp8.h"}
_WORDS = frozenset(
    "alignas alignof and asm auto bitand bitor bool break case catch char class compl const constexpr const_cast continue decltype "
    "default delete do double dynamic_cast else enum explicit extern false float for goto if inline int long mutable namespace new "
    "noexcept not nullptr operator or private public register reinterpret_cast return short signed sizeof static static_cast struct "
    "switch template this throw true try typedef typeid typename union unsigned using virtual void volatile while xor std".split()
) | frozenset(KERNEL_WORDS["qualifiers"])


class Declared(NamedTuple):
    """An operand of a formula. `dtype` is None where `placeholder` stands for it. A `raw` one is an array that the formula indexes
    itself."""

    name: str
    placeholder: str | None
    dtype: str | None
    raw: bool = False


def operands(text: str, what: str, raw: bool = False) -> tuple[Declared, ...]:
    """The operands of a declaration, `T x, float y`; with `raw` there may be raw ones."""
    result = tuple(_operand(part.strip(), what) for part in text.split(",")) if text.strip() else ()
    if not raw and any(operand.raw for operand in result):
        raise BadArgument(f"{what}: `raw` in `{text}` is for inputs of elementwise kernels: write a whole kernel, with k.kernel")
    names = [operand.name for operand in result]
    for name in names:
        if names.count(name) > 1:
            raise BadArgument(f"{what}: two operands have the name {name}")
    return result


def _operand(text: str, what: str) -> Declared:
    found = tokens(text)
    words = [token.text for token in found if token.text != "const"]
    if len(words) < 2 or any(token.kind != NAME for token in found) or words[-1] in _WORDS or words[-1].startswith("kops_"):
        raise BadArgument(f"{what}: `{text}` declares no operand: write a type and a name, such as `T x` or `float x`")
    *kind, name = words
    raw = kind[0] == "raw" and len(kind) > 1
    kind = kind[raw:]
    if len(kind) == 1 and _PLACEHOLDER.fullmatch(kind[0]):
        return Declared(name, kind[0], None, raw)
    known = type_of(kind) if kind[0] not in _LONG_NAMES else None
    dtype = _LONG_NAMES.get(kind[0]) if len(kind) == 1 else None
    if known is not None and known.lanes == 1:
        dtype = known.dtype
    if dtype is None:
        raise BadArgument(
            f"{what}: `{' '.join(kind)}` in `{text}` is no type of an operand: write one of C or of a dtype (float, half, int, "
            "int64, bool), or a capital letter such as T, for the dtype that a call has"
        )
    return Declared(name, None, dtype, raw)


def names_in(expression: str, reserved: Iterable[str] = ()) -> tuple[str, ...]:
    """The operands of an expression in the order in which they appear: names that are no functions, members, types, words of C++
    or macros in capitals."""
    found, result = tokens(expression), []
    for i, token in enumerate(found):
        before, after = found[i - 1].text if i else "", found[i + 1].text if i + 1 < len(found) else ""
        name = token.text
        if token.kind != NAME or before in (".", "->", "::") or after in ("(", "::") or name in _WORDS or is_type_name(name):
            continue
        if _PLACEHOLDER.fullmatch(name) or (name.isupper() and len(name) > 1) or name in result or name in reserved:
            continue
        result.append(name)
    return tuple(result)


class Types:
    """The dtypes that the placeholders stand for in one call."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._of: dict[str, tuple[str, str]] = {}  # placeholder -> dtype, and the operand that said so

    def take(self, operand: Declared, dtype: str) -> None:
        """An array of `dtype` is given for an operand. Raises DtypeMismatch."""
        wanted, by = operand.dtype, "as it is declared"
        if operand.placeholder is not None:
            wanted, first = self._of.setdefault(operand.placeholder, (dtype, operand.name))
            by = f"as {first} is, of the same type {operand.placeholder}"
        if dtype != wanted:
            raise DtypeMismatch(
                f"{self._what}: {operand.name} must be of {NAMES[wanted or dtype]}, {by}, not of {NAMES[dtype]}: convert it, or declare "
                "the operands with types of their own, such as \"T x, U y\"",
                {"key": operand.name},
            )

    def dtype(self, operand: Declared) -> str:
        """The dtype of an operand. Raises DtypeMismatch where no array has told it."""
        if operand.placeholder is None:
            return operand.dtype or ""
        found = self._of.get(operand.placeholder)
        if found is None:
            raise DtypeMismatch(
                f"{self._what}: nothing tells what {operand.placeholder} is, the type of {operand.name}: pass an array of it, give out=, "
                f"or declare a type, such as `float {operand.name}`",
                {"key": operand.name},
            )
        return found[0]

    @property
    def names(self) -> Mapping[str, str]:
        """The type of each placeholder in a formula."""
        return {placeholder: compute_type(dtype) for placeholder, (dtype, _) in self._of.items()}


def compute_type(dtype: str) -> str:
    """What a formula computes with."""
    return "float" if dtype in ("f16", "bf16", *TENSORS_ONLY) else C_NAMES[dtype]


def headers(dtypes: Iterable[str]) -> str:
    return "".join(f"#include <{name}>\n" for name in sorted({_HEADERS[dtype] for dtype in dtypes if dtype in _HEADERS}))


def c_string(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def formula(head: str, text: str, types: Mapping[str, str], name: str, last: str = "") -> str:
    """A device function with a user's text as its body, in whose lines the compiler counts."""
    typedefs = "".join(f"    typedef {kind} {placeholder};\n" for placeholder, kind in types.items())
    body = f"{typedefs}#line 1 {c_string(name)}\n{text}\n;{last}\n"
    return f"static __device__ __forceinline__ {head}\n{{\n{body}}}\n#line 1 \"<generated>\"\n"


def packed(values: Sequence[int], narrow: bool) -> list[int]:
    """Sizes and strides as scalar arguments: two in one where 32 bits hold each."""
    if not narrow:
        return list(values)
    pairs = [*values, 0] if len(values) % 2 else list(values)
    return [low | high << 32 for low, high in zip(pairs[::2], pairs[1::2])]


def unpacked(count: int, narrow: bool) -> tuple[str, list[str], Callable[[int], str]]:
    """Their parameter's type, the names of the parameters, and each value as an expression."""
    if not narrow:
        return "i64", [f"kops_q{i}" for i in range(count)], lambda i: f"kops_q{i}"
    return "u64", [f"kops_q{i}" for i in range((count + 1) // 2)], lambda i: f"(unsigned)(kops_q{i // 2}{' >> 32' if i % 2 else ''})"
