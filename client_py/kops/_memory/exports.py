"""Device memory that this process and the daemon share: what this process exports, found by address, and the daemon's memory as this
process's CUDA sees it.

Memory of cudaMalloc has an IPC handle. Virtual memory (PyTorch's expandable segments) is shared by a descriptor for
each of its physical chunks: only those that the tensors touch are. Memory of cudaMallocAsync is shared by a
descriptor of its pool, where the pool was made exportable, and 64 bytes that say where in it.

Descriptors live only while their message is sent. Those of pools live longer: the daemon recognises a pool by its
descriptor, so it stays open as long as an allocation of it is known.

`allocations` caches what was exported, keyed on device, base address and buffer id. A pointer is looked up by address
and believed only when its buffer id (one driver call, well under a microsecond) is still the same: an address can be
reused after a free, a buffer id never is. So the second call on a tensor asks the driver for that id and sends ids
only. Of virtual memory, whose chunks come and go one by one, those that the tensor touches are asked for. Entries whose
memory is gone are released when something new is exported, and by `sweep`. Thread-safe.

Memory of the daemon's is mapped by its descriptor, at its first need. Nothing makes a context or loads libcuda for that: where the
process has no context of the GPU, there is nothing that could use a pointer.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import threading
import weakref
from collections.abc import Generator, Iterator
from typing import Any

from .._base.errors import NoCuda, NotExportable
from .device_pool import DeviceSegment
from .driver import (
    ALLOWED_HANDLE_TYPES,
    BUFFER_ID,
    DEVICE_ORDINAL,
    IS_LEGACY_IPC_CAPABLE,
    IS_MANAGED,
    MEMORY_BLOCK_ID,
    MEMORY_TYPE,
    MEMORY_TYPE_HOST,
    MEMPOOL_HANDLE,
    Driver,
)
from .pool import Source, release

HANDLE_BYTES = 64
POSIX_FD = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
MESSAGE_FDS = 16  # most descriptors of a message

TORCH_HINT = "in PyTorch set PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF in newer ones)"


class Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_ubyte * HANDLE_BYTES)]


class Pool:
    """An exportable memory pool."""

    __slots__ = ("fd", "__weakref__")

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self, close: Any = os.close) -> None:
        close(self.fd)


_pools: weakref.WeakValueDictionary[int, Pool] = weakref.WeakValueDictionary()


class Chunks:
    """Physical chunks that are mapped one behind the other: where each starts, and an id that tells whether it is
    still the same. An address can be unmapped and mapped anew; an id is not used twice."""

    __slots__ = ("driver", "starts", "sizes", "ids")

    def __init__(self, driver: Driver, pointer: int, end: int) -> None:
        self.driver = driver
        self.starts: list[int] = []
        self.sizes: list[int] = []
        self.ids: list[int] = []
        while pointer < end:
            base, size = driver.address_range(pointer)
            self.starts.append(base)
            self.sizes.append(size)
            self.ids.append(chunk_id(driver, base))
            pointer = base + size

    def unchanged(self, pointer: int, end: int) -> bool:
        """Whether the chunks from one address to another are still mapped there."""
        i = bisect.bisect_right(self.starts, pointer) - 1
        while i < len(self.starts) and self.starts[i] < end:
            if chunk_id(self.driver, self.starts[i]) != self.ids[i]:
                return False
            i += 1
        return True

    def export(self, first: int, count: int) -> list[int]:
        """Descriptors of some of them; the caller closes them."""
        fds: list[int] = []
        try:
            for start in self.starts[first : first + count]:
                handle, fd = ctypes.c_uint64(), ctypes.c_int(-1)
                self.driver.call("cuMemRetainAllocationHandle", ctypes.byref(handle), ctypes.c_void_p(start))
                try:
                    self.driver.call(
                        "cuMemExportToShareableHandle", ctypes.byref(fd), handle, POSIX_FD, ctypes.c_ulonglong(0)
                    )
                finally:
                    self.driver.call("cuMemRelease", handle)
                fds.append(fd.value)
        except BaseException:
            _close(fds)
            raise
        return fds


def chunk_id(driver: Driver, pointer: int) -> int:
    """The id of the physical memory behind a pointer; older drivers know only that of the mapping. 0: nothing there."""
    return driver.attribute(pointer, MEMORY_BLOCK_ID, 0) or driver.buffer_id(pointer)


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


class Allocation(Source):
    """One allocation of device memory, or of virtual memory the chunks that tensors touch, exported."""

    __slots__ = ("end", "size", "id", "device", "handle", "chunks", "pool")

    def __init__(
        self,
        base: int,
        size: int,
        buffer_id: int,
        device: str,
        handle: bytes = b"",
        chunks: Chunks | None = None,
        pool: Pool | None = None,
    ) -> None:
        super().__init__()
        self.base = base
        self.end = base + size
        self.size = size
        self.id = buffer_id  # id of an allocation; 0 where there are chunks, which have ids of their own
        self.device = device
        self.handle = handle
        self.chunks = chunks
        self.pool = pool

    def __del__(self, forget: Any = release) -> None:
        forget(self)  # also where it was replaced while a call used it

    @property
    def feature(self) -> str | None:
        return "cuda_vmm" if self.chunks is not None else "cuda_pool" if self.pool is not None else None

    def holds(self, driver: Driver, pointer: int, nbytes: int) -> bool:
        """Whether these bytes are in it, and the memory is still the one that was exported."""
        if not self.base <= pointer or pointer + nbytes > self.end:
            return False
        if self.chunks is not None:
            return self.chunks.unchanged(pointer, pointer + nbytes)
        return driver.buffer_id(pointer) == self.id

    def is_alive(self, driver: Driver) -> bool:
        return self.holds(driver, self.base, self.size if self.chunks is not None else 1)

    def registrations(self) -> Generator[tuple[dict[str, Any], tuple[int, ...]], None, None]:
        if self.chunks is not None:
            yield from self._chunked(self.chunks)
            return
        params = {"kind": "cuda_ipc", "size": self.size, "handle": self.handle, "alloc_id": self.id,
                  "device": self.device}  # fmt: skip
        if self.pool is None:
            yield params, ()
        else:
            yield {**params, "kind": "cuda_pool", "fd": 0, "nfds": 1}, (self.pool.fd,)

    def _chunked(self, chunks: Chunks) -> Iterator[tuple[dict[str, Any], tuple[int, ...]]]:
        for first in range(0, len(chunks.starts), MESSAGE_FDS):
            sizes = chunks.sizes[first : first + MESSAGE_FDS]
            fds = chunks.export(first, MESSAGE_FDS)
            try:
                params = {
                    "kind": "cuda_vmm",
                    "size": sum(sizes) if first else self.size,
                    "fds": list(range(len(fds))),
                    "nfds": len(fds),
                    "chunk_bytes": sizes,
                    "device": self.device,
                }
                yield params, tuple(fds)
            finally:
                _close(fds)


def export(driver: Driver, pointer: int, nbytes: int) -> Allocation:
    """The allocation that contains these bytes. Raises NotExportable, which says what to change."""
    device = driver.uuid(driver.attribute(pointer, DEVICE_ORDINAL) & 0xFFFFFFFF)
    if driver.attribute(pointer, MEMORY_TYPE) & 0xFFFFFFFF == MEMORY_TYPE_HOST:
        raise NotExportable("this is pinned host memory, not device memory: pass it as a NumPy array or a CPU tensor")
    if driver.attribute(pointer, IS_MANAGED, 0) & 0xFF:
        raise NotExportable("managed memory (cudaMallocManaged) has no IPC handle: allocate it with cudaMalloc")
    with driver.using(driver.pointer_context(pointer).value or 0):
        if driver.attribute(pointer, IS_LEGACY_IPC_CAPABLE, 1) & 0xFF:
            return _export_ipc(driver, pointer, device)
        pool = driver.attribute(pointer, MEMPOOL_HANDLE, 0)
        if pool:
            return _export_pooled(driver, pointer, device, pool)
        return _export_chunks(driver, pointer, nbytes, device)


def _export_ipc(driver: Driver, pointer: int, device: str) -> Allocation:
    base, size = driver.address_range(pointer)
    handle = Handle()
    status = driver.library.cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(base))
    if status:
        raise NotExportable(f"this device memory has no IPC handle: {driver.error_name(status)}; {_MAPPED}")
    return Allocation(base, size, driver.attribute(pointer, BUFFER_ID), device, bytes(handle.reserved))


def _export_pooled(driver: Driver, pointer: int, device: str, address: int) -> Allocation:
    base, size = driver.address_range(pointer)
    pool, handle = _pools.get(address), Handle()
    if pool is None:
        fd = ctypes.c_int(-1)
        try:
            driver.call(
                "cuMemPoolExportToShareableHandle",
                ctypes.byref(fd),
                ctypes.c_void_p(address),
                POSIX_FD,
                ctypes.c_ulonglong(0),
            )
        except NoCuda as error:
            raise NotExportable(_POOLED, {"pooled": True, **error.detail}) from None
        pool = _pools[address] = Pool(fd.value)
    driver.call("cuMemPoolExportPointer", ctypes.byref(handle), ctypes.c_uint64(base))
    return Allocation(base, size, driver.attribute(pointer, BUFFER_ID), device, bytes(handle.reserved), pool=pool)


def _export_chunks(driver: Driver, pointer: int, nbytes: int, device: str) -> Allocation:
    if not driver.attribute(pointer, ALLOWED_HANDLE_TYPES, POSIX_FD) & POSIX_FD:
        raise NotExportable(_MAPPED, {"pooled": False})
    chunks = Chunks(driver, pointer, pointer + nbytes)
    return Allocation(chunks.starts[0], sum(chunks.sizes), 0, device, chunks=chunks)


_POOLED = (
    "memory of cudaMallocAsync is shared only where its pool was made with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: "
    f"{TORCH_HINT} to backend:native; in CuPy use cupy.cuda.MemoryPool instead of MemoryAsyncPool"
)
_MAPPED = (
    "virtually mapped memory is shared only where it was made with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR: "
    f"{TORCH_HINT} to expandable_segments:False before the tensor is made"
)


class Allocations:
    """Exported allocations by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: tuple[list[int], list[Allocation]] = ([], [])  # replaced, never changed
        self._mapped: tuple[list[int], list[DeviceSegment]] = ([], [])  # the daemon's memory that is mapped here; replaced
        self._driver: Driver | None = None

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            self._driver = Driver()
        return self._driver

    def find(self, pointer: int) -> Allocation | DeviceSegment:
        """The allocation that holds the pointer; exports it when it is new. Where it has chunks, cover() is needed. Memory that is
        the daemon's is known to it."""
        if self._mapped[0]:
            starts, segments = self._mapped
            i = bisect.bisect_right(starts, pointer) - 1
            if i >= 0 and pointer < starts[i] + segments[i].size:
                return segments[i]
        driver = self._driver or self.driver
        starts, found = self._table
        i = bisect.bisect_right(starts, pointer) - 1
        if i >= 0:
            allocation = found[i]
            if pointer < allocation.end and (allocation.chunks or driver.buffer_id(pointer) == allocation.id):
                return allocation
        return self.cover(pointer, 1)

    def cover(self, pointer: int, nbytes: int) -> Allocation:
        """One allocation that holds all of these bytes, as they are now."""
        driver = self._driver or self.driver
        starts, found = self._table
        i = bisect.bisect_right(starts, pointer) - 1
        if i >= 0 and found[i].holds(driver, pointer, nbytes):
            return found[i]
        with self._lock:
            self._sweep(driver)
            return self._add(driver, pointer, nbytes)

    def _add(self, driver: Driver, pointer: int, nbytes: int) -> Allocation:
        found = self._table[1]
        allocation = next((a for a in found if a.holds(driver, pointer, nbytes)), None)
        if allocation is not None:
            return allocation  # another thread was faster
        allocation = export(driver, pointer, nbytes)
        while others := [a for a in found if a.base < allocation.end and allocation.base < a.end]:
            # Chunks of two tensors that overlap: one registration for both, so that the daemon sees that they share memory.
            found = [a for a in found if a not in others]
            base = min(allocation.base, *(a.base for a in others))
            end = max(allocation.end, *(a.end for a in others))
            if (base, end) != (allocation.base, allocation.end):
                allocation = export(driver, base, end - base)
            for other in others:
                release(other)
        self._keep(sorted([*found, allocation], key=lambda a: a.base))
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
        gone = [a for a in self._table[1] if not a.is_alive(driver)]
        if gone:
            self._keep([a for a in self._table[1] if a not in gone])
            for allocation in gone:
                release(allocation)

    def _keep(self, left: list[Allocation]) -> None:
        self._table = ([a.base for a in left], left)

    def mapped(self, segment: DeviceSegment, there: bool) -> None:
        """Memory of the daemon's was mapped in this process, at its `base`, or is to be unmapped."""
        with self._lock:
            left = [one for one in self._mapped[1] if one is not segment] + [segment] * there
            left.sort(key=lambda one: one.base)
            self._mapped = ([one.base for one in left], left)

    def after_fork(self) -> None:
        """A child has no use of its parent's CUDA memory."""
        self.__init__()  # type: ignore[misc]


allocations = Allocations()
os.register_at_fork(after_in_child=allocations.after_fork)


# The daemon's memory in this process


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
