"""The client's part of a shape rule: the shapes and dtypes of the outputs that it allocates, whether an output is read,
and the sizes that an op's arithmetic is counted in. One entry a rule, not an op; the daemon checks everything again.

`out_dtype`, which ops take whose results may have another dtype than their inputs, travels among a call's attributes up to the request,
where it says what is allocated; the daemon sees the output's dtype alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from .._base.declarations import DTYPES, OPS
from .._base.dtypes import FLOATS, NAMES
from .._base.errors import BadArgument, DtypeMismatch, ShapeMismatch
from .._base.texts import counted

_DECLARED: Mapping[str, Any] = OPS
Shape = Sequence[int]
Attrs = Mapping[str, Any]


def broadcast(*shapes: Shape) -> tuple[int, ...]:
    """NumPy's broadcasting of shapes."""
    first = tuple(shapes[0])
    if all(len(shape) == len(first) and tuple(shape) == first for shape in shapes[1:]):  # sizes may be symbols: few comparisons
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
    a, b = shapes[:2]
    if len(a) < 2 or len(b) < 2:
        raise ShapeMismatch(f"gemm takes matrices and vectors; got shapes {tuple(a)} and {tuple(b)}")
    m, k = (a[-1], a[-2]) if attrs.get("trans_a") else (a[-2], a[-1])
    k_b, n = (b[-1], b[-2]) if attrs.get("trans_b") else (b[-2], b[-1])
    if k != k_b:
        raise ShapeMismatch(f"gemm's inner sizes differ: {k} and {k_b}, of shapes {tuple(a)} and {tuple(b)}")
    return m, n, k


def _gemm_shapes(shapes: Sequence[Shape], attrs: Attrs) -> tuple[int, ...]:
    m, n, _ = _gemm_sizes(shapes, attrs)
    return (*broadcast(shapes[0][:-2], shapes[1][:-2]), m, n)


def _linear_shapes(shapes: Sequence[Shape], attrs: Attrs) -> tuple[int, ...]:
    product, bias = _gemm_shapes(shapes, attrs), tuple(shapes[2])
    if len(bias) > len(product) or any(size not in (1, of) for size, of in zip(reversed(bias), reversed(product))):
        raise ShapeMismatch(f"a bias of shape {bias} does not broadcast to the product's {product}")
    return product


def _scaled_shapes(shapes: Sequence[Shape], attrs: Attrs) -> tuple[int, ...]:
    product = _gemm_shapes(shapes, attrs)
    wholes = {"scale_a": (*product[:-1], 1), "scale_b": (*product[:-2], 1, product[-1])}
    for (name, of), shape in zip(wholes.items(), shapes[2:]):
        scale = tuple(shape)
        if len(scale) > len(of) or any(size not in (1, whole) for size, whole in zip(reversed(scale), reversed(of))):
            raise ShapeMismatch(f"{name} of shape {scale} does not broadcast to {of}: one number, or one for each {_ONE_EACH[name]}")
    return product


_ONE_EACH = {"scale_a": "row of a, of shape (rows, 1)", "scale_b": "column of b, of shape (columns,)"}


class Rule(NamedTuple):
    """`out_scale`: the attribute that scales the previous values of `out`; they are read where it is not 0."""

    out_shape: Callable[[Sequence[Shape], Attrs], tuple[int, ...]]
    sizes: Callable[[Sequence[Shape], Attrs], dict[str, int]]
    out_scale: str | None = None
    known: bool = True
    broadcasts: bool = False  # all inputs, so that a number can be one
    vectors: bool = False  # a one-dimensional input among the first two is a row, or a column, as in NumPy's matmul

    def reads_out(self, attrs: Attrs) -> bool:
        return not self.known or (self.out_scale is not None and attrs.get(self.out_scale, 0) != 0)

    def check_no_out(self, op: str, attrs: Attrs) -> None:
        """Raises BadArgument where an output is read, and so has to be given."""
        if self.reads_out(attrs):
            raise BadArgument(f"{op} with these attributes reads its output: give out=")


RULES: dict[str, Rule] = {
    "elementwise": Rule(_elementwise_shapes, lambda shapes, attrs: {}, broadcasts=True),
    "gemm": Rule(
        _gemm_shapes,
        lambda shapes, attrs: dict(zip("mnk", _gemm_sizes(shapes, attrs), strict=True)),
        out_scale="beta",
        vectors=True,
    ),
    "scaled_gemm": Rule(_scaled_shapes, lambda shapes, attrs: dict(zip("mnk", _gemm_sizes(shapes, attrs), strict=True)), vectors=True),
    "linear": Rule(_linear_shapes, lambda shapes, attrs: dict(zip("mnk", _gemm_sizes(shapes, attrs), strict=True)), vectors=True),
}


def _no_shape(shapes: Sequence[Shape], attrs: Attrs) -> tuple[int, ...]:
    raise BadArgument("this client does not know the result's shape: give out=")


def vectors_among(op: str, names: Sequence[str], shapes: Sequence[Shape], attrs: Attrs) -> tuple[bool, bool]:
    """Whether the first input of a rule with `vectors` is one, a row, and whether the second is one, a column."""
    for name, shape in zip(names[:2], shapes[:2], strict=True):
        if len(shape) == 1 and attrs.get(f"trans_{name}"):
            raise BadArgument(f"{op}: trans_{name} swaps the dimensions of a matrix, and {name} is a vector: leave it out")
    return len(shapes[0]) == 1, len(shapes[1]) == 1


def of_vectors(shape: tuple[int, ...], row: bool, column: bool) -> tuple[int, ...]:
    """The shape of a result without the dimensions that vectors were given."""
    if column:
        shape = shape[:-1]
    return (*shape[: -1 if column else -2], *shape[len(shape) if column else -1 :]) if row else shape


VECTORS = frozenset(op for op, declared in OPS.items() if declared["rule"] in RULES and RULES[declared["rule"]].vectors)

UNKNOWN = Rule(_no_shape, lambda shapes, attrs: {}, known=False, broadcasts=True)


def own_dtypes(op: str) -> Sequence[Sequence[str]]:
    """For each input: the dtypes that it may have where these do not follow from the first one's. Empty: there is no such input."""
    declared: Mapping[str, Any] = _DECLARED.get(op, {})
    if "in_dtypes" not in declared:
        return ()
    return [declared["in_dtypes"].get(name, ()) for name in declared["inputs"]]


def own_dtype(op: str, i: int) -> str | None:
    """The one dtype that an input has whatever the others have."""
    own = own_dtypes(op)
    return own[i][0] if i < len(own) and len(own[i]) == 1 else None


def check_count(op: str, count: int) -> None:
    """Raises BadArgument for another number of inputs than an op takes that is known here."""
    names = _DECLARED[op]["inputs"] if op in _DECLARED else None
    if names is not None and count != len(names):
        raise BadArgument(f"{op} takes {counted(len(names), 'input')} ({', '.join(names)}), got {count}")


def check_inputs(op: str, dtypes: Sequence[str]) -> str:
    """The dtype of the inputs: the first one's, and of all that have none of their own. Raises DtypeMismatch."""
    own = own_dtypes(op)
    if not own:
        return result_dtype(dtypes)
    for name, dtype, taken in zip(_DECLARED[op]["inputs"], dtypes, own):
        if taken and dtype not in taken:
            raise DtypeMismatch(f"{op}: {name} is {NAMES[dtype]}, and must be {' or '.join(NAMES[one] for one in taken)}")
    return result_dtype([dtype for dtype, taken in zip(dtypes, own) if not taken])


def result_dtype(dtypes: Sequence[str]) -> str:
    """The dtype of all of them."""
    for dtype in dtypes:
        if dtype != dtypes[0]:
            raise DtypeMismatch(f"the inputs have dtypes {dtypes[0]} and {dtype}: convert one of them")
    return dtypes[0]


def operations(
    declared: Mapping[str, Any], rule: Rule, inputs: Sequence[Shape], out: Shape, dtype: str, attrs: Attrs
) -> int | None:
    """Floating-point operations of one execution: an op declares a factor, and the sizes of its rule, for each element of `out`.
    None: integers."""
    if "operations" not in declared or dtype not in FLOATS:
        return None
    factor, names = declared["operations"]
    sizes = rule.sizes(inputs, attrs)
    return int(math.prod(out) * factor * math.prod(sizes[name] for name in names))


def operand_bytes(shape: Shape, dtype: str) -> int:
    """Bytes of a tensor's elements, each index counted."""
    return math.prod(shape) * DTYPES[dtype]


OUT_DTYPE = "out_dtype"

# Ops whose results have other dtypes than their inputs, even where no dtype is asked for.
OTHER_DTYPES = frozenset(op for op, d in _DECLARED.items() if any(i not in outs for i, outs in d.get("out_dtypes", {}).items()))


def takes_out_dtype(op: str) -> bool:
    """Whether the op takes `out_dtype`."""
    return "out_dtypes" in _DECLARED.get(op, {})


def out_dtype_of(op: str, dtype: str, wanted: str | None = None) -> str:
    """The dtype of the results beside inputs of `dtype`."""
    taken: Sequence[str] = _DECLARED.get(op, {}).get("out_dtypes", {}).get(dtype, (dtype,))
    if wanted is None:
        return taken[0]
    if wanted not in taken:
        names = " or ".join(NAMES[name] for name in taken)
        raise DtypeMismatch(f"{op} of {NAMES[dtype]} gives {names}, not {NAMES[wanted]}", {"key": OUT_DTYPE})
    return wanted


def without_out_dtype(op: str, attrs: Mapping[str, Any], out: Any) -> tuple[Mapping[str, Any], str | None]:
    """The attributes without `out_dtype`, and its wire name."""
    if OUT_DTYPE not in attrs or not takes_out_dtype(op):
        return attrs, None
    from .._tensors.device_array import dtype_name

    others = {name: value for name, value in attrs.items() if name != OUT_DTYPE}
    if attrs[OUT_DTYPE] is None:
        return others, None
    if out is not None:
        raise BadArgument(f"{op}: out= has a dtype of its own: leave out {OUT_DTYPE}", {"key": OUT_DTYPE})
    return others, dtype_name(attrs[OUT_DTYPE])


def out_for_tensors(op: str, values: Sequence[Any], attrs: Mapping[str, Any], out: Any) -> tuple[Mapping[str, Any], Any]:
    """The attributes without `out_dtype`, and the output that it asks for beside torch tensors."""
    attrs, wanted = without_out_dtype(op, attrs, out)
    if wanted is None and op not in OTHER_DTYPES:
        return attrs, out
    from .._tensors.device_array import dtype_name

    dtype = out_dtype_of(op, check_inputs(op, [dtype_name(value.dtype) for value in values]), wanted)
    shape = RULES[_DECLARED[op]["rule"]].out_shape([value.shape for value in values], attrs)
    import torch

    return attrs, values[0].new_empty(shape, dtype=getattr(torch, NAMES[dtype]))
