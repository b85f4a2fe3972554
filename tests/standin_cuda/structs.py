"""The driver's structures, as cuda.h has them."""

from __future__ import annotations

import ctypes

CUdeviceptr = ctypes.c_uint64


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class AllocationProperties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("requested_handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_uint8 * 8),
    ]


class AccessDescription(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", ctypes.c_int)]


class IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_uint8 * 64)]


class PoolProperties(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("max_size", ctypes.c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_uint8 * 54),
    ]


class PoolPointer(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_uint8 * 64)]
