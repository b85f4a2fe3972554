"""DLPack: its structures (dlpack.h), and memory given to another framework of this process, without a copy."""

from __future__ import annotations

import ctypes
from typing import Any

from .._base.dtypes import DLPACK
from .._base.records import Device
from .._memory.mapping import place

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
