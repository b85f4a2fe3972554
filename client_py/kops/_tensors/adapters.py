"""Which framework a value belongs to: the adapter that a tensor needs, and arrays in shared memory for `empty`, `zeros` and `array` of the
clients. A framework is looked at only where the program has imported it.
"""

from __future__ import annotations

import numbers
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from .._base.errors import WrongType
from .device_array import Array, array_adapter
from .operands import Adapter, Operand, Operands, as_dtype

_by_type: dict[type, Adapter] = {Array: array_adapter}


def adapter_of(value: Any) -> Adapter:
    """The adapter for a tensor. Raises WrongType."""
    adapter = _by_type.get(type(value))
    return adapter if adapter is not None else _find_adapter(value)


def meet_torch() -> None:
    """Gets ready for torch's tensors where the program has imported torch: the first call with one need not, and goes by the
    compiled part at once."""
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "empty_like") and torch.Tensor not in _by_type:  # all of it is imported
        from .torch import TorchAdapter

        _by_type.setdefault(torch.Tensor, TorchAdapter(torch))


def _find_adapter(value: Any) -> Adapter:
    kind = type(value)
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(kind, torch.Tensor):
        from .torch import TorchAdapter

        return _by_type.setdefault(kind, TorchAdapter(torch))
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, numpy.ndarray):
        from .numpy import Bits, BitsAdapter, NumpyAdapter

        if issubclass(kind, numpy.ma.MaskedArray):
            raise WrongType("masked arrays are not supported: pass .data or .filled()")
        return _by_type.setdefault(kind, BitsAdapter(kind.of) if issubclass(kind, Bits) else NumpyAdapter())
    if hasattr(value, "__cuda_array_interface__"):
        from .device import interface_adapter

        return interface_adapter
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        from .device import dlpack_adapter

        return dlpack_adapter(value)
    if _is_number(value):  # not by its type, which may have arrays as well
        from .operands import number_adapter

        return number_adapter
    if kind in (list, tuple) or any(hasattr(value, a) for a in ("__array__", "__array_interface__", "__float__")):
        from .numpy import PlainAdapter

        return PlainAdapter()
    raise WrongType(
        f"{kind.__module__}.{kind.__qualname__} is no tensor: pass a NumPy array, a torch tensor, or an object with "
        "__cuda_array_interface__ or DLPack"
    )


def _is_number(value: Any) -> bool:
    """Whether a value is a number of Python's, or one of NumPy's, which has a dtype and no elements to set."""
    return isinstance(value, numbers.Real) or (
        hasattr(value, "dtype") and hasattr(value, "item") and not hasattr(value, "__setitem__") and getattr(value, "ndim", None) == 0
    )


def inputs(values: Iterable[Any], operands: Operands, own: Sequence[str | None] = ()) -> list[Operand]:
    """The operands of an op's inputs. Lists take the dtype of the first tensor, else f32; numbers need something
    that has a dtype, if only a number of NumPy's. `own` has the dtypes of inputs that are always of one."""
    known = _by_type.get
    result: list[Any] = []
    plain = False
    for value in values:
        adapter = known(type(value)) or _find_adapter(value)
        plain |= adapter.plain
        result.append((adapter, value) if adapter.plain else adapter.operand(value, operands))
    if plain:
        like = _first(result)
        dtype = like.dtype if like is not None else None
        owned = [*own, *(None,) * (len(result) - len(own))]
        result = [
            o if type(o) is Operand or o[0].number else o[0].convert(o[1], mine or dtype, operands)
            for o, mine in zip(result, owned, strict=True)
        ]
        if like is None and _first(result) is None:
            result = [o if type(o) is Operand or not hasattr(o[1], "dtype") else o[0].convert(o[1], None, operands) for o in result]
        like = _first(result)
        result = [
            o if type(o) is Operand else o[0].beside(o[1], like and as_dtype(like, mine), operands)
            for o, mine in zip(result, owned, strict=True)
        ]
    return result


def _first(found: list[Any]) -> Operand | None:
    """The first operand that is made already, of an array where one is among them."""
    made = [one for one in found if type(one) is Operand]
    return next((one for one in made if not one.adapter.plain), made[0] if made else None)


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
