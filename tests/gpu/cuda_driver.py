"""A program that shares memory on its own, by the driver's own functions: nothing here is of the client libraries, so that a fault of
theirs cannot hide one of the daemon's. The calls are those of `standin_cuda.Driver`, which works on a real driver as well.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import standin_cuda

QUIET_S, SETTLE_S = 0.3, 20.0


class Array:
    """float32 memory at an address, as CuPy or Numba would offer it."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "<f4", "data": (address, False), "version": 3,
                                         "strides": None, "stream": None}  # fmt: skip


class Driver(standin_cuda.Driver):
    """The first device's primary context, made current in the calling thread."""

    def write(self, pointer: int, data: bytes) -> None:
        super().write(pointer, data)
        self.synchronize()

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
        return pointer - self.address_range(pointer)[0]

    def export(self, pointer: int) -> dict[str, Any]:
        """What `register` takes for the allocation that holds the pointer."""
        base, size = self.address_range(pointer)
        return {"kind": "cuda_ipc", "handle": self.ipc_handle(base), "size": size, "alloc_id": self.buffer_id(base), "device": self.uuid()}

    def export_fd(self, pointer: int) -> int:
        """The descriptor of the memory that map_new() mapped there."""
        handle = ctypes.c_uint64()
        self.call("cuMemRetainAllocationHandle", ctypes.byref(handle), ctypes.c_void_p(pointer))
        try:
            return self.vmm_export(handle.value)
        finally:
            self.vmm_release(handle.value)

    def export_pooled(self, pool: int, pointer: int, size: int) -> tuple[dict[str, Any], list[int]]:
        """What `register` takes for memory of the pool."""
        fd = self.pool_export(pool)  # a real driver exports pointers of a pool only once the pool was exported
        params = {"kind": "cuda_pool", "size": size, "handle": self.pool_export_pointer(pointer), "alloc_id": self.buffer_id(pointer),
                  "device": self.uuid(), "fd": 0}  # fmt: skip
        return params, [fd]

    def map_fd(self, fd: int, size: int) -> int:
        """Maps shareable memory by its descriptor: a device pointer. unmap() ends it."""
        handle, pointer = self.vmm_import(fd), self.vmm_reserve(size)
        try:
            self.vmm_map(pointer, size, handle)
        finally:
            self.vmm_release(handle)
        return pointer

    def unmap(self, pointer: int, size: int) -> None:
        self.vmm_unmap(pointer, size)
        self.vmm_address_free(pointer, size)

    def map_new(self, pointer: int, size: int) -> None:
        """New shareable memory at reserved addresses; it lasts as long as it is mapped."""
        handle = self.vmm_create(size)
        try:
            self.vmm_map(pointer, size, handle)
        finally:
            self.vmm_release(handle)

    def alloc_from(self, pool: int, size: int) -> int:
        pointer = self.pool_alloc(pool, size)
        self.synchronize()
        return pointer
