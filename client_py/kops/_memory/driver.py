"""The CUDA driver by ctypes: contexts, streams, and the attributes of device pointers.

libcuda.so.1 is loaded at the first use of device memory; KOPS_CUDA_DRIVER names another file. Nothing here creates a
context: the tensors' own is made current for the calls that need one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from typing import Any

from .._base.errors import BadArgument, NoCuda

# CUpointer_attribute
MEMORY_TYPE, BUFFER_ID, IS_MANAGED, DEVICE_ORDINAL, IS_LEGACY_IPC_CAPABLE, ALLOWED_HANDLE_TYPES, MEMPOOL_HANDLE = (
    2,
    7,
    8,
    9,
    10,
    14,
    17,
)
MEMORY_BLOCK_ID = 20
MEMORY_TYPE_HOST = 1
CONTEXT, LEGACY_STREAM = 1, 1
CAPTURE_ERRORS = range(900, 910)
CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class Driver:
    """The functions of libcuda that a client needs. Raises NoCuda where there is none."""

    def __init__(self) -> None:
        path = os.environ.get("KOPS_CUDA_DRIVER") or "libcuda.so.1"
        try:
            self.library = ctypes.CDLL(path)
        except OSError as error:
            raise NoCuda(f"no CUDA driver: {error}") from error
        self._attribute = self.library.cuPointerGetAttribute
        self._attribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]
        self._attribute.restype = ctypes.c_int
        self._uuids: dict[int, str] = {}
        self._local = threading.local()
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a driver function; raises NoCuda, which names it and its error, unless it succeeds."""
        status = getattr(self.library, name)(*arguments)
        if status:
            raise NoCuda(f"{name}: {self.error_name(status)}", {"driver": self.error_name(status)})

    def error_name(self, status: int) -> str:
        text = ctypes.c_char_p()
        self.library.cuGetErrorName(status, ctypes.byref(text))
        return (text.value or b"error").decode() if text.value else f"error {status}"

    def buffer_id(self, pointer: int) -> int:
        """The id of the allocation that holds the pointer; 0 when it is none of this process's."""
        local = self._local.__dict__
        cell = local.get("cell")
        if cell is None:
            value = ctypes.c_uint64()
            cell = local["cell"] = (value, ctypes.addressof(value))
        if self._attribute(cell[1], BUFFER_ID, pointer):
            return 0
        found: int = cell[0].value
        return found

    def attribute(self, pointer: int, which: int, default: int | None = None) -> int:
        """A pointer attribute that is an integer of up to 64 bits."""
        value = ctypes.c_uint64(0)
        status = self._attribute(ctypes.addressof(value), which, pointer)
        if status:
            if default is not None:
                return default
            raise BadArgument(f"0x{pointer:x} is no pointer that the CUDA driver knows: {self.error_name(status)}")
        return value.value

    def uuid(self, ordinal: int) -> str:
        """The UUID of a device, in nvidia-smi's form."""
        if ordinal not in self._uuids:
            raw = (ctypes.c_ubyte * 16)()
            device = ctypes.c_int()
            self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
            name = "cuDeviceGetUuid_v2" if hasattr(self.library, "cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
            self.call(name, ctypes.byref(raw), device)
            digits = bytes(raw).hex()
            self._uuids[ordinal] = "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        return self._uuids[ordinal]

    def capturing(self, stream: int) -> bool:
        """Whether a stream is being captured into a graph, or cannot be waited for because another one is."""
        status = ctypes.c_int()
        failed = self.library.cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(status))
        return bool(status.value) or failed in CAPTURE_ERRORS

    @contextlib.contextmanager
    def relaxed(self) -> Iterator[None]:
        """Lets this thread make calls that the capture of a stream, in the mode that frameworks use, would refuse and be ended by."""
        mode = ctypes.c_int(CAPTURE_RELAXED)
        self.library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        try:
            yield
        finally:
            self.library.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))

    def pointer_context(self, pointer: int) -> ctypes.c_void_p:
        """The context that the pointer's memory belongs to; that of its device for memory which has none."""
        context = self.attribute(pointer, CONTEXT, 0)
        if context:
            return ctypes.c_void_p(context)
        return ctypes.c_void_p(self.primary_context(self.attribute(pointer, DEVICE_ORDINAL) & 0xFFFFFFFF))

    def primary_context(self, ordinal: int) -> int:
        """The device's primary context, kept for the life of the process: the one that frameworks use."""
        primary, device = ctypes.c_void_p(), ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(ordinal))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(primary), device)
        return primary.value or 0

    @contextlib.contextmanager
    def using(self, context: int) -> Iterator[None]:
        """Makes a context current meanwhile."""
        self.call("cuCtxPushCurrent_v2", ctypes.c_void_p(context))
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def synchronize(self, pointer: int, stream: int) -> None:
        """Waits until the stream has drained. `pointer` says whose legacy or per-thread stream 1 and 2 are."""
        self.call("cuCtxPushCurrent_v2", self.pointer_context(pointer))
        try:
            self.call("cuStreamSynchronize", ctypes.c_void_p(stream))
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def write(self, pointer: int, data: bytes) -> None:
        """Writes bytes to device memory, and waits for that."""
        self.call("cuCtxPushCurrent_v2", self.pointer_context(pointer))
        try:
            self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), data, ctypes.c_size_t(len(data)))
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def address_range(self, pointer: int) -> tuple[int, int]:
        """Start and bytes of the allocation, or of the mapped chunk, that holds the pointer."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer))
        return base.value, size.value
