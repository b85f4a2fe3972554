"""The CUDA driver by ctypes: what a device pointer belongs to, its IPC handle, and waiting for a stream.

libcuda.so.1 is loaded at the first use of device memory; KOPS_CUDA_DRIVER names another file. Nothing here creates a
context: the tensors' own is made current for the calls that need one.

`allocations` caches what was exported, keyed on device, base address and buffer id. A pointer is looked up by address
and believed only when its buffer id (one driver call, well under a microsecond) is still the same: an address can be
reused after a free, a buffer id never is. So the second call on a tensor asks the driver that one thing and sends ids
only. Entries whose memory is gone are released when something new is exported, and by `sweep`. Thread-safe.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from typing import Any

from ._errors import BadArgument, NoCuda, NotExportable
from ._memory import Source, release

# CUpointer_attribute
CONTEXT, MEMORY_TYPE, BUFFER_ID, IS_MANAGED, DEVICE_ORDINAL, IS_LEGACY_IPC_CAPABLE, MEMPOOL_HANDLE = (
    1,
    2,
    7,
    8,
    9,
    10,
    17,
)
MEMORY_TYPE_HOST = 1
HANDLE_BYTES = 64
LEGACY_STREAM = 1

TORCH_HINT = "in PyTorch set PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF in newer ones)"


class IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * HANDLE_BYTES)]


class Allocation(Source):
    """One allocation of device memory, exported."""

    __slots__ = ("base", "end", "size", "id", "device", "handle")

    def __init__(self, base: int, size: int, buffer_id: int, device: str, handle: bytes) -> None:
        super().__init__()
        self.base = base
        self.end = base + size
        self.size = size
        self.id = buffer_id
        self.device = device
        self.handle = handle

    def registration(self) -> tuple[dict[str, Any], tuple[int, ...]]:
        params = {
            "kind": "cuda_ipc",
            "size": self.size,
            "handle": self.handle,
            "alloc_id": self.id,
            "device": self.device,
        }
        return params, ()


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

    def export(self, pointer: int) -> Allocation:
        """The allocation that holds the pointer, with its IPC handle. Raises NotExportable, which says what to
        change."""
        buffer_id = self.attribute(pointer, BUFFER_ID)
        self._check_exportable(pointer)
        ordinal = self.attribute(pointer, DEVICE_ORDINAL) & 0xFFFFFFFF
        base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), IpcHandle()
        self.call("cuCtxPushCurrent_v2", self.pointer_context(pointer))
        try:
            self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer))
            status = self.library.cuIpcGetMemHandle(ctypes.byref(handle), base)
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        if status:
            raise NotExportable(f"this device memory has no IPC handle: {self.error_name(status)}; {_advice(False)}")
        return Allocation(base.value, size.value, buffer_id, self.uuid(ordinal), bytes(handle.reserved))

    def _check_exportable(self, pointer: int) -> None:
        if self.attribute(pointer, MEMORY_TYPE) & 0xFFFFFFFF == MEMORY_TYPE_HOST:
            raise NotExportable("this is pinned host memory, not device memory: pass it as a NumPy array or a CPU tensor")
        if self.attribute(pointer, IS_MANAGED, 0) & 0xFF:
            raise NotExportable("managed memory (cudaMallocManaged) has no IPC handle: allocate it with cudaMalloc")
        if not self.attribute(pointer, IS_LEGACY_IPC_CAPABLE, 1) & 0xFF:
            pooled = bool(self.attribute(pointer, MEMPOOL_HANDLE, 0))
            raise NotExportable(_advice(pooled), {"pooled": pooled})


def _advice(pooled: bool) -> str:
    if pooled:
        return (
            f"memory of cudaMallocAsync has no handle that another process could open: {TORCH_HINT} to backend:native; "
            "in CuPy use cupy.cuda.MemoryPool instead of MemoryAsyncPool"
        )
    return (
        "virtually mapped memory has no handle that another process could open: "
        f"{TORCH_HINT} to expandable_segments:False (and backend:native, if it says cudaMallocAsync) before the tensor "
        "is made"
    )


class Allocations:
    """What was exported, by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: tuple[list[int], list[Allocation]] = ([], [])  # replaced, never changed
        self._driver: Driver | None = None

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            self._driver = Driver()
        return self._driver

    def find(self, pointer: int) -> Allocation:
        """The allocation that holds the pointer; exports it when it is new."""
        driver = self._driver or self.driver
        starts, found = self._table
        i = bisect.bisect_right(starts, pointer) - 1
        if i >= 0:
            allocation = found[i]
            if pointer < allocation.end and driver.buffer_id(pointer) == allocation.id:
                return allocation
        with self._lock:
            self._sweep(driver)
            allocation = driver.export(pointer)
            starts, found = list(self._table[0]), list(self._table[1])
            i = bisect.bisect_left(starts, allocation.base)
            if i < len(starts) and starts[i] == allocation.base:
                if found[i].id == allocation.id:
                    return found[i]
                release(found[i])
                found[i] = allocation
            else:
                starts.insert(i, allocation.base)
                found.insert(i, allocation)
            self._table = (starts, found)
        return allocation

    def forget(self, allocation: Allocation) -> None:
        """Drops an entry that a daemon called stale; the next use exports it anew."""
        with self._lock:
            self._keep([a for a in self._table[1] if a is not allocation])
        release(allocation)

    def sweep(self) -> None:
        """Releases the entries whose memory is gone."""
        if self._driver is not None:
            with self._lock:
                self._sweep(self._driver)

    def _sweep(self, driver: Driver) -> None:
        gone = [a for a in self._table[1] if driver.buffer_id(a.base) != a.id]
        if gone:
            self._keep([a for a in self._table[1] if a not in gone])
            for allocation in gone:
                release(allocation)

    def _keep(self, left: list[Allocation]) -> None:
        self._table = ([a.base for a in left], left)

    def after_fork(self) -> None:
        """A child has no use of its parent's CUDA memory."""
        self.__init__()  # type: ignore[misc]


allocations = Allocations()
os.register_at_fork(after_in_child=allocations.after_fork)
