"""Integer expressions over the arguments of a launch, by the daemon's own rules (daemon/core/expr.h), which the compiled part of the
package has; and the grids, blocks and clusters that are made of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from .._companions import compiled_part
from ._errors import InterpretError

MULTIPROCESSORS = 4  # the interpreter's as a device, for kernels that spread over all of them
_LOADS: dict[str, Callable[[Any, int], Any]] = {
    "number": lambda _, number: number, "integer": lambda value, _: value, "multiprocessors": lambda _, __: MULTIPROCESSORS,
    "numel": lambda shape, _: math.prod(shape), "rank": lambda shape, _: len(shape), "size": operator.getitem,
}  # fmt: skip
_UNARY: dict[str, Callable[[Any], Any]] = {
    "negate": operator.neg, "next_pow2": lambda a: 1 << (operator.index(a) - 1).bit_length() if a > 1 else 1,
}  # fmt: skip
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.floordiv, "mod": operator.mod,
    "ceil_div": lambda a, b: -(-a // b), "min": min, "max": max,
}  # fmt: skip


def _symbolic(program: list[tuple[str, Any, int]]) -> Any:
    """The value of a postfix program whose values are symbolic."""
    stack: list[Any] = []
    for code, value, number in program:
        if code in ("numel", "rank", "size") and value is None:
            raise ValueError("a null pointer has no shape")
        if code in _LOADS:
            stack.append(_LOADS[code](value, number))
        elif code in _UNARY:
            stack.append(_UNARY[code](stack.pop()))
        else:
            b = stack.pop()
            stack.append(_BINARY[code](stack.pop(), b))
    return stack[0]


def evaluate(value: int | str, names: Mapping[str, Any], what: str, integers: tuple[type, ...] = (int,)) -> int:
    """An integer, or the value of an expression. `names` are the parameters: an integer, a shape, None for a null
    pointer, or anything else for a name that an expression cannot use. `integers`: the types of integers, which may be
    symbolic; then the value is, too."""
    if not isinstance(value, str):
        try:
            return value.__index__()
        except AttributeError:
            raise InterpretError(f"{what}: {value!r} is neither an integer nor an expression", "launch") from None
    native = compiled_part("an expression")
    named = dict(names)
    count = named.pop("multiprocessors") if type(named.get("multiprocessors")) is int else MULTIPROCESSORS
    try:
        made = native.expression(value.encode("utf-8", "surrogatepass"), named, integers, count)
        result: int = _symbolic(made) if isinstance(made, list) else made
    except ZeroDivisionError:
        raise InterpretError(f"{what}: `{value}` divides by zero", "launch") from None
    except (ValueError, OverflowError) as error:
        raise InterpretError(f"{what}: {error}", "launch") from None
    return result


# Grid, block and cluster

_LIMITS = {"block": (1024, 1024, 64), "grid": (2**31 - 1, 65535, 65535), "cluster": (16, 16, 16)}
_TOGETHER = {"block": 1024, "cluster": 16}


def dimensions(value: Any, names: Mapping[str, Any], what: str, lowest: int = 1) -> tuple[int, int, int]:
    """One to three dimensions of a grid or block, checked against what a device allows."""
    items = list(value) if isinstance(value, (tuple, list)) else [value]
    if not 1 <= len(items) <= 3:
        raise InterpretError(f"{what} has {len(items)} dimensions; 1 to 3 are possible", "launch")
    result = [evaluate(item, names, f"{what}[{i}]") for i, item in enumerate(items)]
    for i, length in enumerate(result):
        if not lowest <= length <= _LIMITS[what][i]:
            raise InterpretError(f"{what}[{i}] is {length}; {lowest} to {_LIMITS[what][i]} are possible", "launch")
    x, y, z = (result + [1, 1])[:3]
    if what in _TOGETHER and x * y * z > _TOGETHER[what]:
        raise InterpretError(f"a {what} of {x} * {y} * {z}; at most {_TOGETHER[what]} are possible", "launch")
    return x, y, z


def one_block(grid: tuple[int, int, int]) -> None:
    """Refuses what a cooperative kernel needs and is not here."""
    if grid[0] * grid[1] * grid[2] > 1:
        raise InterpretError(
            f"a cooperative kernel with a grid of {grid[0]} * {grid[1]} * {grid[2]}: blocks run one after another here, and would wait "
            "for each other for ever; interpret it with one block, or run it on a GPU",
            "launch",
        )


def cluster_of(value: Any, names: Mapping[str, Any], grid: tuple[int, int, int]) -> None:
    """Checks a cluster, which a grid is a multiple of."""
    for i, (whole, part) in enumerate(zip(grid, dimensions(value, names, "cluster"))):
        if whole % part:
            raise InterpretError(f"grid[{i}] is {whole}, which is no multiple of the cluster's {part}", "launch")
