"""Which adapter a tensor needs. A framework is looked at only where the program has imported it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from .._base.errors import WrongType
from .operands import Adapter, Operand, Operands

_by_type: dict[type, Adapter] = {}


def adapter_of(value: Any) -> Adapter:
    """The adapter for a tensor. Raises WrongType."""
    adapter = _by_type.get(type(value))
    return adapter if adapter is not None else _find_adapter(value)


def _find_adapter(value: Any) -> Adapter:
    kind = type(value)
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(kind, torch.Tensor):
        from .torch import TorchAdapter

        return _by_type.setdefault(kind, TorchAdapter(torch))
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, numpy.ndarray):
        from .numpy import Bfloat16Bits, BitsAdapter, NumpyAdapter

        if issubclass(kind, numpy.ma.MaskedArray):
            raise WrongType("masked arrays are not supported: pass .data or .filled()")
        return _by_type.setdefault(kind, BitsAdapter() if issubclass(kind, Bfloat16Bits) else NumpyAdapter())
    if hasattr(value, "__cuda_array_interface__"):
        from .device import DeviceArrayAdapter

        return DeviceArrayAdapter()
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        from .device import dlpack_adapter

        return dlpack_adapter(value)
    if kind in (int, float, list, tuple) or any(hasattr(value, a) for a in ("__array__", "__array_interface__", "__float__")):
        from .numpy import PlainAdapter

        return PlainAdapter()
    raise WrongType(
        f"{kind.__module__}.{kind.__qualname__} is no tensor: pass a NumPy array, a torch tensor, or an object with "
        "__cuda_array_interface__ or DLPack"
    )


def inputs(values: Iterable[Any], operands: Operands) -> list[Operand]:
    """The operands of an op's inputs. Plain numbers and lists take the dtype of the first tensor, else f32."""
    known = _by_type.get
    result: list[Any] = []
    plain = False
    for value in values:
        adapter = known(type(value)) or _find_adapter(value)
        plain |= adapter.plain
        result.append((adapter, value) if adapter.plain else adapter.operand(value, operands))
    if plain:
        dtype = next((o.dtype for o in result if type(o) is Operand), None)
        result = [o if type(o) is Operand else o[0].convert(o[1], dtype, operands) for o in result]
    return result
