"""The driver API by ctypes, as far as these tests play the part of a program that shares memory on its own.

It shares nothing with the client libraries, so that a fault of theirs cannot hide one of the daemon's. Only used where
a CUDA device exists. Every call raises CudaError unless it succeeds.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

BUFFER_ID = 7  # CU_POINTER_ATTRIBUTE_BUFFER_ID
POSIX_FD = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
LOCATION_DEVICE = 1
ACCESS_READ_WRITE = 3
QUIET_S, SETTLE_S = 0.3, 20.0


class CudaError(RuntimeError):
    pass


class AccessDescription(ctypes.Structure):
    _fields_ = [("location_type", ctypes.c_int), ("location_id", ctypes.c_int), ("flags", ctypes.c_int)]


class IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]


class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class AllocationProperties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location),
                ("win32", ctypes.c_void_p), ("flags", ctypes.c_uint8 * 8)]  # fmt: skip


class PoolProperties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handle_types", ctypes.c_int), ("location", Location),
                ("win32", ctypes.c_void_p), ("max_size", ctypes.c_size_t), ("usage", ctypes.c_ushort),
                ("reserved", ctypes.c_ubyte * 54)]  # fmt: skip


class Array:
    """float32 memory at an address, as CuPy or Numba would offer it."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "<f4", "data": (address, False), "version": 3,
                                         "strides": None, "stream": None}  # fmt: skip


class Driver:
    """The first device's primary context, made current in the calling thread."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ.get("KOPS_CUDA_DRIVER", "libcuda.so.1"))
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.device = device.value
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(text))
            raise CudaError(f"{name}: {(text.value or b'?').decode()} ({status})")

    def uuid(self) -> str:
        """In nvidia-smi's form."""
        raw = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid_v2", ctypes.byref(raw), self.device)
        digits = bytes(raw).hex()
        return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    # Memory

    def alloc(self, size: int) -> int:
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def free(self, pointer: int) -> None:
        self.call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def write(self, pointer: int, data: bytes) -> None:
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), ctypes.c_char_p(data), ctypes.c_size_t(len(data)))
        self.synchronize()

    def read(self, pointer: int, size: int) -> bytes:
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(pointer), ctypes.c_size_t(size))
        return data.raw

    def synchronize(self) -> None:
        self.call("cuCtxSynchronize")

    def free_bytes(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def settle(self) -> None:
        """Until nobody makes or ends a context any more: the free memory stays the same for a while."""
        free, since, until = self.free_bytes(), time.monotonic(), time.monotonic() + SETTLE_S
        while time.monotonic() < min(since + QUIET_S, until):
            time.sleep(QUIET_S / 10)
            now = self.free_bytes()
            if now != free:
                free, since = now, time.monotonic()

    def offset(self, pointer: int) -> int:
        """From the start of the allocation that holds the pointer."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer))
        return pointer - base.value

    # Sharing

    def export(self, pointer: int) -> dict[str, Any]:
        """What `register` takes for the allocation that holds the pointer."""
        base, size, alloc_id = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_uint64()
        self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer))
        handle = IpcHandle()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), base)
        self.call("cuPointerGetAttribute", ctypes.byref(alloc_id), BUFFER_ID, base)
        return {
            "kind": "cuda_ipc",
            "handle": bytes(ctypes.string_at(ctypes.byref(handle), 64)),
            "size": size.value,
            "alloc_id": alloc_id.value,
            "device": self.uuid(),
        }

    def export_fd(self, pointer: int) -> int:
        """The descriptor of the memory that map_new() mapped there."""
        handle, fd = ctypes.c_uint64(), ctypes.c_int(-1)
        self.call("cuMemRetainAllocationHandle", ctypes.byref(handle), ctypes.c_void_p(pointer))
        try:
            self.call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, POSIX_FD, ctypes.c_uint64(0))
        finally:
            self.call("cuMemRelease", handle)
        return fd.value

    def export_pooled(self, pool: int, pointer: int, size: int) -> tuple[dict[str, Any], list[int]]:
        """What `register` takes for memory of the pool."""
        fd, alloc_id = ctypes.c_int(-1), ctypes.c_uint64()
        self.call("cuMemPoolExportToShareableHandle", ctypes.byref(fd), ctypes.c_void_p(pool), POSIX_FD, ctypes.c_uint64(0))
        handle = IpcHandle()
        self.call("cuMemPoolExportPointer", ctypes.byref(handle), ctypes.c_uint64(pointer))
        self.call("cuPointerGetAttribute", ctypes.byref(alloc_id), BUFFER_ID, ctypes.c_uint64(pointer))
        params = {"kind": "cuda_pool", "size": size, "handle": bytes(ctypes.string_at(ctypes.byref(handle), 64)),
                  "alloc_id": alloc_id.value, "device": self.uuid(), "fd": 0}  # fmt: skip
        return params, [fd.value]

    def map_fd(self, fd: int, size: int) -> int:
        """Maps shareable memory by its descriptor: a device pointer. unmap() ends it."""
        handle, pointer = ctypes.c_uint64(), ctypes.c_uint64()
        self.call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), POSIX_FD)
        try:
            self.call("cuMemAddressReserve", ctypes.byref(pointer), ctypes.c_size_t(size), ctypes.c_size_t(0),
                      ctypes.c_uint64(0), ctypes.c_uint64(0))  # fmt: skip
            self.call("cuMemMap", pointer, ctypes.c_size_t(size), ctypes.c_size_t(0), handle, ctypes.c_uint64(0))
        finally:
            self.call("cuMemRelease", handle)
        access = AccessDescription(LOCATION_DEVICE, self.device, ACCESS_READ_WRITE)
        self.call("cuMemSetAccess", pointer, ctypes.c_size_t(size), ctypes.byref(access), ctypes.c_size_t(1))
        return pointer.value

    def unmap(self, pointer: int, size: int) -> None:
        self.call("cuMemUnmap", ctypes.c_uint64(pointer), ctypes.c_size_t(size))
        self.call("cuMemAddressFree", ctypes.c_uint64(pointer), ctypes.c_size_t(size))

    def reserve(self, size: int) -> int:
        """Addresses without memory."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAddressReserve", ctypes.byref(pointer), ctypes.c_size_t(size), ctypes.c_size_t(0),
                  ctypes.c_uint64(0), ctypes.c_uint64(0))  # fmt: skip
        return pointer.value

    def map_new(self, pointer: int, size: int) -> None:
        """New shareable memory at reserved addresses; it lasts as long as it is mapped."""
        properties = AllocationProperties(1, POSIX_FD, Location(LOCATION_DEVICE, self.device))
        handle = ctypes.c_uint64()
        self.call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(properties), ctypes.c_uint64(0))
        try:
            self.call("cuMemMap", ctypes.c_uint64(pointer), ctypes.c_size_t(size), ctypes.c_size_t(0), handle,
                      ctypes.c_uint64(0))  # fmt: skip
        finally:
            self.call("cuMemRelease", handle)
        access = AccessDescription(LOCATION_DEVICE, self.device, ACCESS_READ_WRITE)
        self.call("cuMemSetAccess", ctypes.c_uint64(pointer), ctypes.c_size_t(size), ctypes.byref(access), ctypes.c_size_t(1))

    # Pools

    def make_pool(self, exportable: bool) -> int:
        properties = PoolProperties(1, POSIX_FD if exportable else 0, Location(LOCATION_DEVICE, self.device))
        pool = ctypes.c_void_p()
        self.call("cuMemPoolCreate", ctypes.byref(pool), ctypes.byref(properties))
        return pool.value or 0

    def alloc_from(self, pool: int, size: int) -> int:
        pointer = ctypes.c_uint64()
        self.call("cuMemAllocFromPoolAsync", ctypes.byref(pointer), ctypes.c_size_t(size), ctypes.c_void_p(pool), None)
        self.synchronize()
        return pointer.value
