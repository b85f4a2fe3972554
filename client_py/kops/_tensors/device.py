"""Device memory of any other framework: `__cuda_array_interface__` (CuPy, Numba, JAX, …) and DLPack (dlpack.h), by which memory is also
given to another framework of this process, without a copy.

Results are made by the inputs' own framework. CuPy, Numba and JAX are known; of any other the top-level module's
`empty(shape, dtype)` is used, and where it has none the caller gives `out=`.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable
from typing import Any

from .._base.declarations import DTYPES
from .._base.dtypes import DLPACK, NAMES, OF_ML_DTYPES, TYPESTRS
from .._base.errors import BadArgument, ReadOnly, Unsupported
from .._base.records import Device
from .._memory.driver import LEGACY_STREAM
from .._memory.exports import allocations, place
from .operands import Adapter, Layout, Operand, Operands, number_bytes, span, unknown_dtype

CPU, CUDA, CUDA_HOST = 1, 2, 3
NAME, NAME_VERSIONED = b"dltensor", b"dltensor_versioned"  # a consumer renames the capsule
VERSION = (1, 0)
_TYPES = {name: code for code, name in DLPACK.items()}


class DLDevice(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("id", ctypes.c_int32)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned, from 1.0 on: where there are flags a consumer knows that it may write."""

    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64), ("tensor", DLTensor),
    ]  # fmt: skip


_given: dict[int, Any] = {}  # arrays that consumers have not given back, by the address of the structure

_api = ctypes.PyDLL(None)  # a separate object: other modules declare their own types on ctypes.pythonapi
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer = _api.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
_is_valid = _api.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]


def _delete(address: int) -> None:
    """By the consumer, when it is done."""
    _given.pop(address, None)


def _drop(capsule: int) -> None:
    """The capsule's own end: nobody has taken the memory."""
    for name in (NAME, NAME_VERSIONED):
        if _is_valid(capsule, name):
            _given.pop(_pointer(capsule, name), None)


_on_delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete)
_on_drop = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_drop)


def device_of(device: Device) -> tuple[int, int]:
    """DLPack's name of a device, in this process. Raises BufferError where the process has no context on it."""
    if device.backend == "host":
        return CPU, 0
    found = place(device.uuid)
    if found is None:
        raise BufferError(f"this process has no CUDA context on {device.uuid}, and none is made for that: copy the array with .get()")
    return CUDA, found[1]


def capsule(
    owner: Any, address: int, dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], device: tuple[int, int], versioned: bool
) -> Any:
    """A capsule that keeps `owner` until its consumer is done. `strides` count elements."""
    code, bits = _TYPES[dtype]
    sizes = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    steps = (ctypes.c_int64 * max(1, len(shape)))(*strides)
    tensor = DLTensor(address, DLDevice(*device), len(shape), DLDataType(code, bits, 1), sizes, steps, 0)
    deleter = ctypes.cast(_on_delete, ctypes.c_void_p).value
    made: Any = _Versioned(*VERSION, None, deleter, 0, tensor) if versioned else _Managed(tensor, None, deleter)
    at = ctypes.addressof(made)
    _given[at] = (made, sizes, steps, owner)
    return _new(at, NAME_VERSIONED if versioned else NAME, ctypes.cast(_on_drop, ctypes.c_void_p))


ML_NAMES = {NAMES[short]: short for short in NAMES if NAMES[short] in OF_ML_DTYPES}


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


class DeviceAdapter(Adapter):
    """Device memory of another framework, by `__cuda_array_interface__`, versions 2 and 3, or by DLPack.

    The interface's stream is waited for; where it names none (version 2), and with DLPack, the legacy default stream; an explicit None says
    that nothing is to be waited for. DLPack's capsule is read and kept for the call, not consumed, so its owner frees it as usual."""

    def __init__(self, read: Callable[[Any, Operands, bool], tuple[Layout, int | None]]) -> None:
        self._read = read  # the array, and the stream on which it is ready

    def operand(self, value: Any, operands: Operands, *, output: bool = False, reads: bool = True) -> Operand:
        (dtype, shape, strides, address, _), stream = self._read(value, operands, output)
        pointer = address or 0
        operands.keep.append(value)
        if 0 in shape:
            return Operand(value, None, 0, shape, None, dtype, self)
        if strides is not None:
            strides = tuple(1 if n == 1 else s for s, n in zip(strides, shape, strict=True))
            if any(s < 0 for s in strides):
                raise BadArgument("negative strides cannot be sent: pass a copy")
        allocation = allocations.find(pointer)
        if stream is not None and pointer:
            operands.waits.setdefault((allocation.device, stream), lambda: allocations.driver.synchronize(pointer, stream))
        if allocation.chunks is not None:
            allocation = allocations.cover(pointer, span(shape, strides, dtype))
        return Operand(value, allocation, pointer - allocation.base, shape, strides, dtype, self)

    def layout(self, value: Any, staged: bool = True) -> Layout:
        cupy = sys.modules.get("cupy")
        device = int(value.device.id) if cupy is not None and isinstance(value, cupy.ndarray) else -1
        return super().layout(value, staged)._replace(device=device)

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


def _by_interface(value: Any, operands: Operands, output: bool) -> tuple[Layout, int | None]:
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
    return Layout(dtype, tuple(interface["shape"]), strides, pointer), interface.get("stream", LEGACY_STREAM)


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


def _by_dlpack(value: Any, operands: Operands, output: bool) -> tuple[Layout, int | None]:
    capsule = value.__dlpack__(stream=LEGACY_STREAM)
    tensor = DLTensor.from_address(_capsule_pointer(capsule, NAME))
    dtype = DLPACK.get((tensor.dtype.code, tensor.dtype.bits)) if tensor.dtype.lanes == 1 else None
    if dtype is None:
        raise unknown_dtype(f"DLPack {tensor.dtype.code}/{tensor.dtype.bits}")
    operands.keep.append(capsule)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
    return Layout(dtype, shape, strides, (tensor.data or 0) + tensor.byte_offset), LEGACY_STREAM


interface_adapter, device_dlpack_adapter = DeviceAdapter(_by_interface), DeviceAdapter(_by_dlpack)


def dlpack_adapter(value: Any) -> Adapter:
    kind = int(value.__dlpack_device__()[0])
    if kind == CUDA:
        return device_dlpack_adapter
    if kind in (CPU, CUDA_HOST):
        from .numpy import DLPackHostAdapter

        return DLPackHostAdapter(value)
    raise Unsupported(f"memory of DLPack device type {kind}: only CPU and CUDA memory can be used")
