"""Arrays in shared memory, for `empty`, `zeros` and `array` of the clients."""

from __future__ import annotations

import sys
from typing import Any


def _torch(thing: Any, kind: str) -> Any:
    """torch, when `thing` is a torch object of that class."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(thing, getattr(torch, kind)) else None


def empty(shape: Any, dtype: Any) -> Any:
    torch = _torch(dtype, "dtype")
    if torch is not None:
        from .torch import TorchAdapter

        return TorchAdapter(torch).empty((shape,) if isinstance(shape, int) else tuple(shape), dtype)
    from . import numpy as numpy_arrays

    return numpy_arrays.empty(shape, numpy_arrays.numpy_dtype(dtype))


def zeros(shape: Any, dtype: Any) -> Any:
    made = empty(shape, dtype)
    made[...] = 0
    return made


def array(value: Any, dtype: Any) -> Any:
    torch = _torch(value, "Tensor")
    if torch is not None:
        made = empty(tuple(value.shape), dtype if dtype is not None else value.dtype)
        made.copy_(value.detach())
        return made
    from . import numpy as numpy_arrays

    source, made_of = numpy_arrays.to_copy(value, dtype)
    made = numpy_arrays.empty(source.shape, made_of)
    made[...] = source
    return made
