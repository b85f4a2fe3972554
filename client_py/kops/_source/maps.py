"""Tensor maps: what cuTensorMapEncodeTiled() is told, as a signature says it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .._base.errors import BadArgument

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
