"""Memory of the daemon's on its GPUs: segments that `alloc` makes, the blocks cut from them, and their reuse.

A `DeviceSegment` is one allocation. The process holds its descriptor, by which the memory outlives the connection that made it, and
the daemon. It is made when it first becomes known to a daemon (`_calls.plans`), so that to take a block needs no connection. A
`DeviceBlock` is the piece that an array lies in; it goes back to its pool when Python has no more references to it, which is after
the reply of the last call that used it. There is one pool for each GPU; all clients of the process share it.

After a fork both sides go on using the segments, so neither may reuse a block that was in use then (as in `pool`). The pools are
thread-safe; a block may die on any thread, also inside a pool's own functions.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from typing import Any

from .pool import Blocks, Source, class_size

GRANULARITY = 2 << 20  # bytes: granularity of GPU memory
SLICED = 1 << 20  # bytes: blocks up to this size share segments
IDLE = 1 << 30  # bytes of free blocks that a pool keeps for reuse
ADDRESSES = 1 << 62  # an address that no process uses


class DeviceSegment(Source):
    """One allocation on a GPU. Its `base` is where this process's CUDA sees it, before that an address of nobody's, by which its
    arrays are told from others: the daemon's address is the daemon's own."""

    __slots__ = ("pool", "size", "fd", "blocks", "pointer", "process", "alone")
    on_host = False
    chunks = None  # None: one allocation
    _next = ADDRESSES
    _lock = threading.Lock()

    def __init__(self, pool: DevicePool, size: int, alone: bool = False) -> None:
        super().__init__()
        self.pool = pool
        self.size = size
        self.alone = alone  # for one array: none of its blocks is used again
        self.fd = -1  # not made yet
        self.blocks = 0  # cut from it, in use or free
        self.pointer = 0  # address in this process's CUDA; 0: none yet
        self.process = 0  # process in which `pointer` is valid
        with DeviceSegment._lock:
            self.base = DeviceSegment._next
            DeviceSegment._next += size

    @property
    def device(self) -> str:
        return self.pool.device

    def adopt(self, fds: list[int]) -> bool:
        """Takes the descriptor of the memory that was made for it. False: it has one, another thread was faster."""
        with DeviceSegment._lock:
            if self.fd >= 0:
                return False
            self.fd = fds.pop()
            return True

    def made(self, size: int) -> None:
        """The daemon made memory of that many bytes. All of them are an array's that has the segment for itself."""
        if self.alone and size != self.size:
            with DeviceSegment._lock:
                self.pool.bytes += size - self.size
                self.base, self.size = DeviceSegment._next, size
                DeviceSegment._next += size

    def registrations(self) -> Generator[tuple[dict[str, Any], tuple[int, ...]], None, None]:
        yield {"kind": "cuda_vmm", "size": self.size, "device": self.device, "fd": 0, "nfds": 1}, (self.fd,)

    def close(self) -> None:
        from .exports import unmap

        unmap(self)
        if self.fd >= 0:
            os.close(self.fd)


class DeviceBlock:
    """A piece of a segment. Who uses the memory holds a reference."""

    __slots__ = ("segment", "offset", "size", "_epoch")

    def __init__(self, segment: DeviceSegment, offset: int, size: int) -> None:
        self.offset = offset
        self.size = size
        self._epoch = segment.pool.epoch
        self.segment = segment

    def __del__(self) -> None:
        # Runs in any thread, at any point of any function, so it only appends.
        segment = getattr(self, "segment", None)  # None where an interrupt came before it was set
        if segment is not None:
            segment.pool.returned.append((segment, self.offset, self.size, self._epoch))


class DevicePool(Blocks):
    """The blocks of one GPU."""

    def __init__(self, device: str) -> None:
        super().__init__(IDLE)
        self.device = device  # UUID

    def take(self, size: int) -> DeviceBlock:
        """A block of at least `size` bytes, whose content is whatever was there."""
        rounded = class_size(size)
        if rounded > SLICED:
            rounded = -(-rounded // GRANULARITY) * GRANULARITY
        with self._lock:
            return DeviceBlock(*self._place(rounded), rounded)

    def take_alone(self, size: int) -> DeviceBlock:
        """A segment of its own, which is closed once nothing uses it. It may have more bytes when it is made."""
        with self._lock:
            self._collect()
            segment = DeviceSegment(self, -(-size // GRANULARITY) * GRANULARITY, alone=True)
            self.bytes += segment.size
            segment.blocks = 1
            return DeviceBlock(segment, 0, segment.size)

    def _make(self, size: int) -> DeviceSegment:
        return DeviceSegment(self, max(size, GRANULARITY))


_pools: dict[str, DevicePool] = {}


def pool_of(device: str) -> DevicePool:
    """The pool of a GPU, by its UUID."""
    return _pools.get(device) or _pools.setdefault(device, DevicePool(device))


def trim() -> int:
    """Gives back what is kept for reuse on all GPUs; the bytes."""
    return sum(pool.trim() for pool in list(_pools.values()))


def _after_fork() -> None:
    DeviceSegment._lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
