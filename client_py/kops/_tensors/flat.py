"""Arrays as the memory that they lie in, for kernels which take no more than a pointer."""

from __future__ import annotations

import numbers
import sys
from typing import Any

from .._base.errors import BadArgument

__all__ = ["flat", "is_number"]


def is_number(value: Any) -> bool:
    """Whether an argument is a number: Python's, or one of NumPy's, a structure included."""
    if isinstance(value, numbers.Number):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def _is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def flat(value: Any) -> Any:
    """The memory from the first element of a torch tensor or NumPy array to its last one, in one dimension, where the array has gaps,
    repeats elements, or has its dimensions in another order; otherwise the array itself. Memory before the first element, of negative
    strides, is not among it."""
    contiguous = getattr(value, "is_contiguous", None)
    if contiguous is not None:  # torch's
        if contiguous() or not value.numel():
            return value
        size = 1 + sum((n - 1) * stride for n, stride in zip(value.shape, value.stride()))
        return value.as_strided((size,), (1,))
    if not _is_numpy(value) or value.flags.c_contiguous or not value.size:
        return value
    if any(stride < 0 or stride % value.itemsize for stride in value.strides):
        raise BadArgument("an array with negative strides, or with strides of no whole elements, cannot be sent: pass a copy")
    size = 1 + sum((n - 1) * stride // value.itemsize for n, stride in zip(value.shape, value.strides))
    return sys.modules["numpy"].lib.stride_tricks.as_strided(value, (size,), (value.itemsize,))
