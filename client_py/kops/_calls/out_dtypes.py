"""`out_dtype`, which ops take whose results may have another dtype than their inputs. It travels among a call's attributes up to the
request, where it says what is allocated; the daemon sees the output's dtype alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._base.declarations import OPS
from .._base.dtypes import NAMES
from .._base.errors import BadArgument, DtypeMismatch
from .._tensors.operands import Operand
from .rules import RULES, check_inputs

KEY = "out_dtype"
_DECLARED: Mapping[str, Any] = OPS


# Ops whose results have other dtypes than their inputs, even where no dtype is asked for.
OTHERS = frozenset(op for op, d in _DECLARED.items() if any(i not in outs for i, outs in d.get("out_dtypes", {}).items()))


def offered(op: str) -> bool:
    """Whether the op takes `out_dtype`."""
    return "out_dtypes" in _DECLARED.get(op, {})


def result(op: str, dtype: str, wanted: str | None = None) -> str:
    """The dtype of the results beside inputs of `dtype`."""
    taken: Sequence[str] = _DECLARED.get(op, {}).get("out_dtypes", {}).get(dtype, (dtype,))
    if wanted is None:
        return taken[0]
    if wanted not in taken:
        names = " or ".join(NAMES[name] for name in taken)
        raise DtypeMismatch(f"{op} of {NAMES[dtype]} gives {names}, not {NAMES[wanted]}", {"key": KEY})
    return wanted


def split(op: str, attrs: Mapping[str, Any], out: Any) -> tuple[Mapping[str, Any], str | None]:
    """The attributes without `out_dtype`, and its wire name."""
    if KEY not in attrs or not offered(op):
        return attrs, None
    from .._tensors.device_array import dtype_name

    others = {name: value for name, value in attrs.items() if name != KEY}
    if attrs[KEY] is None:
        return others, None
    if out is not None:
        raise BadArgument(f"{op}: out= has a dtype of its own: leave out {KEY}", {"key": KEY})
    return others, dtype_name(attrs[KEY])


def as_dtype(operand: Operand, dtype: str) -> Operand:
    """What an adapter allocates a tensor of that dtype like."""
    if operand.dtype == dtype:
        return operand
    return Operand(operand.value, None, 0, (), None, dtype, operand.adapter)


def for_tensors(op: str, values: Sequence[Any], attrs: Mapping[str, Any], out: Any) -> tuple[Mapping[str, Any], Any]:
    """The attributes without `out_dtype`, and the output that it asks for beside torch tensors."""
    attrs, wanted = split(op, attrs, out)
    if wanted is None and op not in OTHERS:
        return attrs, out
    from .._tensors.device_array import dtype_name

    dtype = result(op, check_inputs(op, [dtype_name(value.dtype) for value in values]), wanted)
    shape = RULES[_DECLARED[op]["rule"]].out_shape([value.shape for value in values], attrs)
    import torch

    return attrs, values[0].new_empty(shape, dtype=getattr(torch, NAMES[dtype]))
