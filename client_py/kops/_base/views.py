"""Arrays of complex numbers and structures as arrays of what they consist of."""

from __future__ import annotations

import sys
from typing import Any

from .declarations import DTYPES
from .dtypes import NAMES, OF_ML_DTYPES
from .errors import BadArgument, DtypeMismatch

__all__ = ["plain_view"]


def _is_void(dtype: Any) -> bool:
    """Whether elements are structures, or bytes without a type."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and getattr(dtype, "type", None) is numpy.void


def plain_view(value: Any, param: Any = None, what: str = "an argument") -> Any:
    """An array of complex numbers or structures as one of their parts, which lie side by side in the last dimension; anything else as it
    is. `param`: the parameter that it is for, whose elements those of structures are, too, where they can be."""
    is_complex = getattr(value, "is_complex", None)
    if is_complex is not None:  # torch's
        if not is_complex():
            return value
        parts = sys.modules["torch"].view_as_real(value.conj() if value.is_conj() else value)
        return parts.flatten(-2) if value.dim() and value.is_contiguous() else parts
    dtype: Any = getattr(value, "dtype", None)
    void = _is_void(dtype)
    if (not void and getattr(dtype, "kind", "") != "c") or not hasattr(value, "view"):
        return value
    if dtype.hasobject or not dtype.isnative:
        raise BadArgument(f"{what}: an array of {dtype}, whose elements are objects or bytes in another order, cannot be sent")
    wanted = getattr(param, "lanes", 1)
    if void and wanted not in (1, dtype.itemsize):
        raise DtypeMismatch(f"{what} has structures of {wanted} bytes, and those of the array have {dtype.itemsize}", {"key": param.name})
    part = "uint8" if void else f"float{4 * dtype.itemsize}"
    name = NAMES.get(getattr(param, "dtype", ""), "")
    if void and name and name not in OF_ML_DTYPES and dtype.itemsize % DTYPES[param.dtype] == 0:
        part = name
    try:
        return (value if value.ndim else value.reshape(1)).view(part)
    except (ValueError, TypeError):
        raise BadArgument(f"{what}: an array of {dtype} that is not contiguous cannot be sent: pass a copy") from None
