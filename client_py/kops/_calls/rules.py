"""The client's part of a shape rule: the shapes of the outputs that it allocates, whether an output is read,
and the sizes that an op's arithmetic is counted in. One entry a rule, not an op; the daemon checks everything again."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .._base.declarations import DTYPES
from .._base.errors import BadArgument, ShapeMismatch

Shape = Sequence[int]
Attrs = Mapping[str, Any]


def broadcast(*shapes: Shape) -> tuple[int, ...]:
    """NumPy's broadcasting of shapes."""
    first = tuple(shapes[0])
    if [first] * len(shapes) == list(map(tuple, shapes)):
        return first
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if result[i] == 1:
                result[i] = size
            elif size not in (1, result[i]):
                raise ShapeMismatch("these shapes do not broadcast: " + " and ".join(str(tuple(s)) for s in shapes))
    return tuple(result)


def _elementwise_shapes(shapes: Sequence[Shape], attrs: Attrs) -> tuple[int, ...]:
    return broadcast(*shapes)


def _gemm_sizes(shapes: Sequence[Shape], attrs: Attrs) -> tuple[int, int, int]:
    a, b = shapes
    if len(a) < 2 or len(b) < 2:
        raise ShapeMismatch(f"gemm takes matrices; got shapes {tuple(a)} and {tuple(b)}")
    m, k = (a[-1], a[-2]) if attrs.get("trans_a") else (a[-2], a[-1])
    k_b, n = (b[-1], b[-2]) if attrs.get("trans_b") else (b[-2], b[-1])
    if k != k_b:
        raise ShapeMismatch(f"gemm's inner sizes differ: {k} and {k_b}, of shapes {tuple(a)} and {tuple(b)}")
    return m, n, k


def _gemm_shapes(shapes: Sequence[Shape], attrs: Attrs) -> tuple[int, ...]:
    m, n, _ = _gemm_sizes(shapes, attrs)
    return (*broadcast(shapes[0][:-2], shapes[1][:-2]), m, n)


class Rule(NamedTuple):
    out_shape: Callable[[Sequence[Shape], Attrs], tuple[int, ...]]
    reads_out: Callable[[Attrs], bool]
    sizes: Callable[[Sequence[Shape], Attrs], dict[str, int]]


RULES: dict[str, Rule] = {
    "elementwise": Rule(_elementwise_shapes, lambda attrs: False, lambda shapes, attrs: {}),
    "gemm": Rule(
        _gemm_shapes,
        lambda attrs: attrs.get("beta", 0) != 0,
        lambda shapes, attrs: dict(zip("mnk", _gemm_sizes(shapes, attrs), strict=True)),
    ),
}


def _no_shape(shapes: Sequence[Shape], attrs: Attrs) -> tuple[int, ...]:
    raise BadArgument("this client does not know the result's shape: give out=")


UNKNOWN = Rule(_no_shape, lambda attrs: True, lambda shapes, attrs: {})


def operations(declared: Mapping[str, Any], rule: Rule, inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int | None:
    """Floating-point operations of one execution: an op declares a factor, and the sizes of its rule, for each element of `out`."""
    if "operations" not in declared:
        return None
    factor, names = declared["operations"]
    sizes = rule.sizes(inputs, attrs)
    return int(math.prod(out) * factor * math.prod(sizes[name] for name in names))


def operand_bytes(shape: Shape, dtype: str) -> int:
    """Bytes of a tensor's elements, each index counted."""
    return math.prod(shape) * DTYPES[dtype]
