"""Memory of the daemon's as this process's CUDA sees it: mapped by its descriptor, at its first need.

Nothing here makes a context, and libcuda is not loaded for it: where the process has no context of the GPU, there is nothing that
could use a pointer.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import TYPE_CHECKING, Any

from .._base.errors import NoCuda
from .driver import Driver
from .exports import allocations

if TYPE_CHECKING:
    from .device_pool import DeviceSegment

POSIX_FD = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
LOCATION_DEVICE, ACCESS_RW = 1, 3

_lock = threading.Lock()


class _Access(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("device", ctypes.c_int), ("access", ctypes.c_int)]


def _loaded_driver() -> Driver | None:
    """The CUDA driver, where this process has loaded and initialised it."""
    path = os.environ.get("KOPS_CUDA_DRIVER") or "libcuda.so.1"
    try:
        library = ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError:
        return None
    if library.cuCtxGetCurrent(ctypes.byref(ctypes.c_void_p())):
        return None  # not initialised: no context either
    try:
        return allocations.driver
    except NoCuda:
        return None


def _context(driver: Driver, ordinal: int) -> int:
    """A context that the process has on a device: the current one, else the primary one where it is active; 0: none."""
    current, device = ctypes.c_void_p(), ctypes.c_int(-1)
    driver.call("cuCtxGetCurrent", ctypes.byref(current))
    if current.value:
        driver.call("cuCtxGetDevice", ctypes.byref(device))
        if device.value == ordinal:
            return current.value
    flags, active, handle = ctypes.c_uint(), ctypes.c_int(), ctypes.c_int()
    driver.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(ordinal))
    driver.call("cuDevicePrimaryCtxGetState", handle, ctypes.byref(flags), ctypes.byref(active))
    return driver.primary_context(ordinal) if active.value else 0


def place(uuid: str) -> tuple[Driver, int, int] | None:
    """The driver, a GPU's ordinal and this process's context there; None where it has none."""
    driver = _loaded_driver()
    if driver is None:
        return None
    count = ctypes.c_int()
    driver.call("cuDeviceGetCount", ctypes.byref(count))
    for ordinal in range(count.value):
        if driver.uuid(ordinal) == uuid:
            context = _context(driver, ordinal)
            return (driver, ordinal, context) if context else None
    return None


def pointer_of(segment: DeviceSegment) -> int | None:
    """The segment's address in this process's context; None where it has no context there. Raises NoCuda where the driver
    refuses. The memory has been made."""
    with _lock:
        if segment.pointer and segment.process == os.getpid():
            return segment.pointer
        found = place(segment.device)
        if found is None:
            return None
        driver, ordinal, context = found
        with driver.using(context):
            segment.pointer = segment.base = _map(driver, segment, ordinal)
        segment.process = os.getpid()
        allocations.mapped(segment, True)
        return segment.pointer


def _map(driver: Driver, segment: DeviceSegment, ordinal: int) -> int:
    size, memory, pointer = ctypes.c_size_t(segment.size), ctypes.c_uint64(), ctypes.c_uint64()
    nothing = ctypes.c_ulonglong(0)
    driver.call("cuMemImportFromShareableHandle", ctypes.byref(memory), ctypes.c_void_p(segment.fd), ctypes.c_int(POSIX_FD))
    try:
        driver.call("cuMemAddressReserve", ctypes.byref(pointer), size, ctypes.c_size_t(0), ctypes.c_uint64(0), nothing)
        try:
            driver.call("cuMemMap", pointer, size, ctypes.c_size_t(0), memory, nothing)
            try:
                access = _Access(LOCATION_DEVICE, ordinal, ACCESS_RW)
                driver.call("cuMemSetAccess", pointer, size, ctypes.byref(access), ctypes.c_size_t(1))
            except BaseException:
                driver.library.cuMemUnmap(pointer, size)
                raise
        except BaseException:
            driver.library.cuMemAddressFree(pointer, size)
            raise
    finally:
        driver.library.cuMemRelease(memory)  # the mapping keeps it
    return pointer.value


def unmap(segment: DeviceSegment, getpid: Any = os.getpid) -> None:
    """Takes the mapping away, where there is one. Where the driver does not let go, nothing else may come to lie there."""
    if segment.pointer and segment.process == getpid():
        allocations.mapped(segment, False)
        found = place(segment.device)
        if found is not None:
            driver, _, context = found
            pointer, size = ctypes.c_uint64(segment.pointer), ctypes.c_size_t(segment.size)
            with driver.using(context):
                driver.library.cuCtxSynchronize()  # work of this process's may be on it yet
                if driver.library.cuMemUnmap(pointer, size) == 0:
                    driver.library.cuMemAddressFree(pointer, size)
    segment.pointer = 0


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
