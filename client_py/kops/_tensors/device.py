"""Device memory of any other framework: `__cuda_array_interface__` (CuPy, Numba, JAX, …) and DLPack.

Results are made by the inputs' own framework. CuPy, Numba and JAX are known; of any other the top-level module's
`empty(shape, dtype)` is used, and where it has none the caller gives `out=`.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from .._base.declarations import DTYPES
from .._base.dtypes import DLPACK, NAMES, OF_ML_DTYPES, TYPESTRS
from .._base.errors import BadArgument, ReadOnly, Unsupported
from .._memory.driver import LEGACY_STREAM
from .._memory.exports import allocations
from .dlpack import CPU, CUDA, CUDA_HOST, NAME, DLTensor
from .operands import Adapter, Operand, Operands, number_bytes, span, unknown_dtype

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


# An array's address, shape, strides in elements, dtype, and the stream on which it is ready.
_Described: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...] | None, str, int | None]


class DeviceAdapter(Adapter):
    """Device memory of another framework, by `__cuda_array_interface__`, versions 2 and 3, or by DLPack.

    The interface's stream is waited for; where it names none (version 2), and with DLPack, the legacy default stream; an explicit None says
    that nothing is to be waited for. DLPack's capsule is read and kept for the call, not consumed, so its owner frees it as usual."""

    def __init__(self, read: Callable[[Any, Operands, bool], _Described]) -> None:
        self._read = read

    def operand(self, value: Any, operands: Operands, *, output: bool = False, reads: bool = True) -> Operand:
        pointer, shape, strides, dtype, stream = self._read(value, operands, output)
        if 0 not in shape:
            _wait_for(pointer, stream, operands)
        return _refer(self, value, operands, pointer, shape, strides, dtype)

    def allocate(self, like: Operand, shape: tuple[int, ...], operands: Operands) -> Operand:
        return self.operand(_make(like.value, shape, like.dtype), operands)

    def number_operand(self, value: Any, like: Operand, operands: Operands) -> Operand:
        """In a new array of one element. Its framework may have work in flight on that memory, which is waited for."""
        data = number_bytes(value, like.dtype)[1]
        made = self.operand(_make(like.value, (), like.dtype), operands)
        operands.synchronize()
        source: Any = made.source
        allocations.driver.write(source.base + made.offset, data)
        return made


def _by_interface(value: Any, operands: Operands, output: bool) -> _Described:
    if hasattr(value, "block_until_ready"):
        value.block_until_ready()  # JAX computes on streams that it does not reveal
    interface = value.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise Unsupported("masked device arrays are not supported")
    pointer, read_only = interface["data"]
    if output and read_only:
        raise ReadOnly("out is a read-only array")
    # bfloat16 and 8-bit floats have no typestr of their own: the array's dtype is asked.
    dtype = TYPESTRS.get(interface["typestr"]) or ML_NAMES.get(str(getattr(value, "dtype", "")))
    if dtype is None:
        raise unknown_dtype(interface["typestr"])
    strides = interface.get("strides")
    if strides is not None:
        size = DTYPES[dtype]
        if any(s % size for s in strides):
            raise BadArgument("strides are no whole elements: pass a copy")
        strides = tuple(s // size for s in strides)
    return pointer or 0, tuple(interface["shape"]), strides, dtype, interface.get("stream", LEGACY_STREAM)


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _by_dlpack(value: Any, operands: Operands, output: bool) -> _Described:
    capsule = value.__dlpack__(stream=LEGACY_STREAM)
    tensor = DLTensor.from_address(_capsule_pointer(capsule, NAME))
    dtype = DLPACK.get((tensor.dtype.code, tensor.dtype.bits)) if tensor.dtype.lanes == 1 else None
    if dtype is None:
        raise unknown_dtype(f"DLPack {tensor.dtype.code}/{tensor.dtype.bits}")
    operands.keep.append(capsule)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
    return (tensor.data or 0) + tensor.byte_offset, shape, strides, dtype, LEGACY_STREAM


interface_adapter, device_dlpack_adapter = DeviceAdapter(_by_interface), DeviceAdapter(_by_dlpack)


def dlpack_adapter(value: Any) -> Adapter:
    kind = int(value.__dlpack_device__()[0])
    if kind == CUDA:
        return device_dlpack_adapter
    if kind in (CPU, CUDA_HOST):
        from .numpy import DLPackHostAdapter

        return DLPackHostAdapter(value)
    raise Unsupported(f"memory of DLPack device type {kind}: only CPU and CUDA memory can be used")
