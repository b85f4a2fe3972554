"""Device memory of any other framework: `__cuda_array_interface__` (CuPy, Numba, JAX, …) and DLPack.

Results are made by the inputs' own framework. CuPy, Numba and JAX are known; of any other the top-level module's
`empty(shape, dtype)` is used, and where it has none the caller gives `out=`.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from typing import Any

from .._base.declarations import DTYPES
from .._base.dtypes import DLPACK, NAMES, OF_ML_DTYPES, TYPESTRS
from .._base.errors import BadArgument, ReadOnly, Unsupported
from .._memory.driver import LEGACY_STREAM
from .._memory.exports import allocations
from .dlpack import CPU, CUDA, CUDA_HOST, NAME, DLTensor
from .operands import Adapter, Layout, Operand, Operands, number_bytes, span, unknown_dtype

ML_NAMES = {NAMES[short]: short for short in NAMES if NAMES[short] in OF_ML_DTYPES}


def _refer(
    adapter: Adapter,
    value: Any,
    operands: Operands,
    pointer: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    dtype: str,
) -> Operand:
    """An operand for device memory; `strides` count elements."""
    operands.keep.append(value)
    if 0 in shape:
        return Operand(value, None, 0, shape, None, dtype, adapter)
    if strides is not None:
        strides = tuple(1 if n == 1 else s for s, n in zip(strides, shape, strict=True))
        if any(s < 0 for s in strides):
            raise BadArgument("negative strides cannot be sent: pass a copy")
    allocation = allocations.find(pointer)
    if allocation.chunks is not None:
        allocation = allocations.cover(pointer, span(shape, strides, dtype))
    return Operand(value, allocation, pointer - allocation.base, shape, strides, dtype, adapter)


def _number(adapter: Adapter, value: Any, like: Operand, operands: Operands) -> Operand:
    """A number in a new array of one element. Its framework may have work in flight on that memory, which is waited for."""
    data = number_bytes(value, like.dtype)[1]
    made = adapter.operand(_make(like.value, (), like.dtype), operands)
    operands.synchronize()
    source: Any = made.source
    allocations.driver.write(source.base + made.offset, data)
    return made


def _wait_for(pointer: int, stream: int | None, operands: Operands) -> None:
    if stream is not None and pointer:
        allocation = allocations.find(pointer)
        key = (allocation.device, stream)
        operands.waits.setdefault(key, lambda: allocations.driver.synchronize(pointer, stream))


def _make(value: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A new array of the framework and on the device of `value`."""
    package = type(value).__module__.partition(".")[0]
    name = NAMES[dtype]
    if package == "numba":
        return sys.modules["numba"].cuda.device_array(shape, name)
    if package in ("jax", "jaxlib"):
        import jax

        made = jax.numpy.empty(shape, name, device=value.device)
        return made.block_until_ready()
    module = sys.modules.get(package)
    empty = getattr(module, "empty", None) or getattr(sys.modules.get(type(value).__module__), "empty", None)
    if empty is None:
        raise BadArgument(f"{package} has no empty(shape, dtype) to make the result with: give out=")
    device: Any = getattr(value, "device", None)
    with device if hasattr(device, "__enter__") else contextlib.nullcontext():
        return empty(shape, name)


class DeviceArrayAdapter(Adapter):
    """`__cuda_array_interface__`, versions 2 and 3. The interface's stream is waited for; where it names none (version
    2) the legacy default stream; an explicit None says that nothing is to be waited for."""

    def operand(self, value: Any, operands: Operands, *, output: bool = False, reads: bool = True) -> Operand:
        if hasattr(value, "block_until_ready"):
            value.block_until_ready()  # JAX computes on streams that it does not tell
        interface = value.__cuda_array_interface__
        if interface.get("mask") is not None:
            raise Unsupported("masked device arrays are not supported")
        pointer, read_only = interface["data"]
        if output and read_only:
            raise ReadOnly("out is a read-only array")
        dtype = TYPESTRS.get(interface["typestr"]) or _dtype_by_name(value)
        if dtype is None:
            raise unknown_dtype(interface["typestr"])
        shape = tuple(interface["shape"])
        strides = interface.get("strides")
        if strides is not None:
            size = DTYPES[dtype]
            if any(s % size for s in strides):
                raise BadArgument("strides are no whole elements: pass a copy")
            strides = tuple(s // size for s in strides)
        if 0 not in shape:
            _wait_for(pointer, interface.get("stream", LEGACY_STREAM), operands)
        return _refer(self, value, operands, pointer or 0, shape, strides, dtype)

    def allocate(self, like: Operand, shape: tuple[int, ...], operands: Operands) -> Operand:
        return self.operand(_make(like.value, shape, like.dtype), operands, output=False)

    def number_operand(self, value: Any, like: Operand, operands: Operands) -> Operand:
        return _number(self, value, like, operands)


def _dtype_by_name(value: Any) -> str | None:
    """bfloat16 and 8-bit floats have no typestr of their own: ask the array's dtype."""
    return ML_NAMES.get(str(getattr(value, "dtype", "")))


# DLPack

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def dlpack_adapter(value: Any) -> Adapter:
    kind = int(value.__dlpack_device__()[0])
    if kind == CUDA:
        return DLPackAdapter()
    if kind in (CPU, CUDA_HOST):
        return DLPackHostAdapter()
    raise Unsupported(f"memory of DLPack device type {kind}: only CPU and CUDA memory can be used")


class DLPackAdapter(Adapter):
    """Device memory by DLPack. The capsule is read and kept for the call, not consumed, so its owner frees it as
    usual."""

    def operand(self, value: Any, operands: Operands, *, output: bool = False, reads: bool = True) -> Operand:
        capsule = value.__dlpack__(stream=LEGACY_STREAM)
        tensor = DLTensor.from_address(_capsule_pointer(capsule, NAME))
        dtype = DLPACK.get((tensor.dtype.code, tensor.dtype.bits)) if tensor.dtype.lanes == 1 else None
        if dtype is None:
            raise unknown_dtype(f"DLPack {tensor.dtype.code}/{tensor.dtype.bits}")
        shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
        pointer = (tensor.data or 0) + tensor.byte_offset
        operands.keep.append(capsule)
        if 0 not in shape:
            _wait_for(pointer, LEGACY_STREAM, operands)
        return _refer(self, value, operands, pointer, shape, strides, dtype)

    def allocate(self, like: Operand, shape: tuple[int, ...], operands: Operands) -> Operand:
        return self.operand(_make(like.value, shape, like.dtype), operands)

    def number_operand(self, value: Any, like: Operand, operands: Operands) -> Operand:
        return _number(self, value, like, operands)


class DLPackHostAdapter(Adapter):
    """Host memory by DLPack, such as JAX's CPU arrays: copied like an ordinary NumPy array. Results are made in shared
    memory and handed back by the framework's own from_dlpack."""

    def operand(self, value: Any, operands: Operands, *, output: bool = False, reads: bool = True) -> Operand:
        from .._base.needs_numpy import numpy
        from .numpy import numpy_adapter

        found = numpy_adapter.operand(numpy.from_dlpack(value), operands, output=output, reads=reads)
        return Operand(value, found.source, found.offset, found.shape, found.strides, found.dtype, self)

    def layout(self, value: Any, staged: bool = True) -> Layout:
        from .._base.needs_numpy import numpy
        from .numpy import numpy_adapter

        return numpy_adapter.layout(numpy.from_dlpack(value), staged)

    def allocate(self, like: Operand, shape: tuple[int, ...], operands: Operands) -> Operand:
        from .numpy import numpy_adapter

        made = numpy_adapter.allocate(like, shape, operands)
        made.adapter = _Back(type(like.value))
        return made


class _Back(Adapter):
    """Hands a result to the framework that the inputs came from."""

    def __init__(self, kind: type) -> None:
        self._package = kind.__module__.partition(".")[0].replace("jaxlib", "jax")

    def result(self, value: Any) -> Any:
        module: Any = sys.modules.get(self._package)
        places: list[Any] = [module, getattr(module, "numpy", None), getattr(module, "dlpack", None)]
        for place in places:
            if hasattr(place, "from_dlpack"):
                return place.from_dlpack(value)
        return value
