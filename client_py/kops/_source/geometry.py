"""Grids, blocks and the like: numbers, expressions or functions of the arguments, as they are sent."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

from .._base.errors import BadArgument, OutOfRange, WrongType

# A size in up to three dimensions, as a user may write it.
Sizes: TypeAlias = "int | str | tuple[int | str, ...] | list[int | str] | Callable[..., Any] | None"

NAMES = ("grid", "block", "shared", "cluster")
SCALAR = "shared"
LARGEST = 2**63 - 1  # for the wire; a device takes less


def _size(name: str, value: Any, expressions: bool) -> int | str:
    if type(value) is int and 0 <= value <= LARGEST:
        return value
    if isinstance(value, str):
        if not expressions:
            raise WrongType(f"{name} of one launch must be numbers; expressions are declared with the kernel", {"key": name})
        return value
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise WrongType(f"{name} must be numbers or expressions, not {value!r:.80}", {"key": name}) from None
    if not 0 <= number <= LARGEST:
        raise OutOfRange(f"{name} must be 0 to {LARGEST}, not {number}", {"key": name, "min": 0, "max": LARGEST})
    return number


def encode(name: str, value: Any, expressions: bool) -> Any:
    """As the wire has it: a list of one to three, of `shared` one number or expression."""
    if name == SCALAR:
        return _size(name, value, expressions)
    values = value if isinstance(value, (tuple, list)) else (value,)
    if not 1 <= len(values) <= 3:
        raise BadArgument(f"{name} has one to three dimensions, not {len(values)}", {"key": name})
    return [_size(name, size, expressions) for size in values]


class Geometry:
    """What a kernel was declared with: what the daemon is told, and the functions that are called here."""

    def __init__(self, grid: Any, block: Any, shared: Any, cluster: Any, cooperative: bool = False, pdl: bool = False) -> None:
        self.declared: dict[str, Any] = {}
        self.functions: dict[str, Callable[..., Any]] = {}
        for name, value in zip(NAMES, (grid, block, shared, cluster), strict=True):
            if callable(value):
                self.functions[name] = value
            elif value is not None and not (name == SCALAR and value == 0):
                self.declared[name] = encode(name, value, True)
        self.declared.update({name: True for name, wanted in (("cooperative", cooperative), ("pdl", pdl)) if wanted})
        self._complete = not self.functions and "grid" in self.declared and "block" in self.declared

    def of_call(self, arguments: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
        """What one launch says of its own; `given` is what the caller gave for it."""
        if not given and self._complete:
            return {}
        result: dict[str, Any] = {}
        for name in NAMES:
            value = given.get(name)
            if value is None:
                value = self.functions.get(name)
            if callable(value):
                value = value(*arguments)
            if value is not None:
                result[name] = encode(name, value, False)
        for name in ("grid", "block"):
            if name not in result and name not in self.declared:
                raise BadArgument(f"no {name}: give {name}= in this call, or where the kernel is declared", {"key": name})
        return result
