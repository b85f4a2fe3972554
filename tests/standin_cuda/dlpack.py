"""Device arrays by DLPack: the capsule that `__dlpack__` returns, made with ctypes (dlpack.h, version 0)."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .device import DeviceArray

CUDA = 2
_CODES = {"float32": (2, 32), "float64": (2, 64), "float16": (2, 16), "bfloat16": (4, 16), "int32": (0, 32)}
_NAME = b"dltensor"


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)

_api = ctypes.PyDLL(None)  # of our own: other modules declare their own types on ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, _Destructor]
_api.PyCapsule_IsValid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]

_kept: dict[int, tuple[Any, ...]] = {}  # by address of the managed tensor, until its deleter was called


@_Deleter
def _delete(managed: Any) -> None:
    _kept.pop(ctypes.addressof(managed.contents), None)


@_Destructor
def _destroy(capsule: int) -> None:
    if _api.PyCapsule_IsValid(capsule, _NAME):  # nobody has consumed it
        _kept.pop(_api.PyCapsule_GetPointer(capsule, _NAME), None)


def capsule(array: DeviceArray) -> Any:
    n = len(array.shape)
    size = array.dtype.itemsize
    shape = (ctypes.c_int64 * n)(*array.shape)
    strides = None if array.strides is None else (ctypes.c_int64 * n)(*(s // size for s in array.strides))
    code, bits = _CODES[str(array.dtype)]
    tensor = _Tensor(array.address, CUDA, array.driver.ordinal, n, code, bits, 1, shape, strides, 0)
    managed = _Managed(tensor, None, _delete)
    _kept[ctypes.addressof(managed)] = (managed, shape, strides, array)
    return _api.PyCapsule_New(ctypes.addressof(managed), _NAME, _destroy)


def alive() -> int:
    """Capsules, or tensors made of them, that still hold an array."""
    return len(_kept)


class DLPackArray:
    """The same memory, offered by DLPack alone."""

    def __init__(self, array: DeviceArray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.array.driver.ordinal

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        return capsule(self.array)
