"""Tensor maps: what cuTensorMapEncodeTiled() is told, as a signature says it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .._base.errors import BadArgument

MAX_RANK = 5
SWIZZLES, INTERLEAVES, WIDTHS = (0, 32, 64, 128), (0, 16, 32), (0, 64, 128, 256)
MOST_STEP = 8
FLOATS = ("f16", "bf16", "f32", "f64")
C_TYPE = "const __grid_constant__ CUtensorMap"


@dataclass(frozen=True)
class TensorMap:
    """How a kernel sees a tensor through a tensor map (`const __grid_constant__ CUtensorMap`), which each launch encodes.

    Lists are in the order of the tensor's shape: the contiguous dimension, which cuTensorMapEncodeTiled() has first, is the
    last. `box`: elements of a box in each dimension, numbers from 1 to 256 or expressions over the arguments. `steps`:
    elements from one that is read to the next, 1 to 8. `swizzle`: 0, 32, 64 or 128 bytes. `interleave`: 0, 16 or 32 bytes.
    `l2`: 0, 64, 128 or 256 bytes that the L2 cache gets at once. With `nan` what lies outside of the tensor is read as NaN, not
    as 0; with `tf32` elements of f32 are rounded to tf32 as they are read.
    """

    box: tuple[int | str, ...]
    steps: tuple[int, ...] | None = None
    swizzle: int = 0
    interleave: int = 0
    l2: int = 0
    nan: bool = False
    tf32: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "box", tuple(self.box))
        if self.steps is not None:
            object.__setattr__(self, "steps", tuple(self.steps))

    def wire(self) -> dict[str, Any]:
        """The tensor_map map."""
        params: dict[str, Any] = {"box": list(self.box)}
        if self.steps is not None:
            params["steps"] = list(self.steps)
        for key in ("swizzle", "interleave", "l2"):
            if getattr(self, key):
                params[key] = getattr(self, key)
        for key in ("nan", "tf32"):
            if getattr(self, key):
                params[key] = True
        return params


def fault(made: TensorMap, dtype: str, rank: int | None) -> str | None:
    """The first rule of the daemon that it breaks, apart from its expressions (daemon/core/kernel_map.c)."""
    n = len(made.box)
    steps = made.steps if made.steps is not None else (1,) * n
    rules = (
        (1 <= n <= MAX_RANK, f"a tensor map has 1 to {MAX_RANK} dimensions, its box {n}"),
        (len(steps) == n, "steps has as many numbers as box"),
        (rank in (None, n), "its box has another number of dimensions than the tensor"),
        (made.swizzle in SWIZZLES, "swizzle must be 0, 32, 64 or 128"),
        (made.interleave in INTERLEAVES, "interleave must be 0, 16 or 32"),
        (made.l2 in WIDTHS, "l2 must be 0, 64, 128 or 256"),
        (not made.interleave or n >= 3, "a tensor with interleave has at least 3 dimensions"),
        (made.interleave != 32 or made.swizzle == 32, "swizzle must be 32 with interleave 32"),
        (not made.nan or dtype in FLOATS, f"fill nan is for {', '.join(FLOATS)}"),
        (not made.tf32 or dtype == "f32", "tf32 is for f32"),
        (all(1 <= step <= MOST_STEP for step in steps), f"steps must be from 1 to {MOST_STEP}"),
        (made.interleave or not steps or steps[-1] == 1, "the last step must be 1 without interleave"),
    )
    return next((why for holds, why in rules if not holds), None)


def _number(word: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal()):
        raise BadArgument(f"`{word} {value}`: {word} takes a number of bytes")
    return int(value)


# Words after the shape in a signature: `word value`.
_VALUES: dict[str, Callable[[str], tuple[str, Any]]] = {
    "swizzle": lambda value: ("swizzle", _number("swizzle", value)),
    "interleave": lambda value: ("interleave", _number("interleave", value)),
    "l2": lambda value: ("l2", _number("l2", value)),
    "fill": lambda value: ("nan", {"nan": True, "zero": False}[value]),
    "as": lambda value: ("tf32", {"tf32": True}[value]),
}
LISTS = ("box", "steps")
WORDS = (*LISTS, *_VALUES)
FORM = "`tma const half* a[rows][cols] box[64][64] swizzle 128`"


def made_of(said: Sequence[tuple[str, Any]]) -> TensorMap:
    """The map of words and what follows each: a list of sizes, or a text. Raises BadArgument."""
    given: dict[str, Any] = {}
    for word, value in said:
        try:
            key, meant = (word, value) if word in LISTS else _VALUES[word](value)
        except KeyError:
            raise BadArgument(f"`{word} {value}` is not understood; a tensor map is declared so: {FORM}") from None
        if key in given:
            raise BadArgument(f"`{word}` twice")
        given[key] = meant
    if "box" not in given:
        raise BadArgument(f"a tensor map needs its box: {FORM}")
    steps = given.pop("steps", None)
    if steps is not None:
        if not all(isinstance(step, int) for step in steps):
            raise BadArgument("steps are numbers")
        given["steps"] = tuple(steps)
    return TensorMap(**given)
