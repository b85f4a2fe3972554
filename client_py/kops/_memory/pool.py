"""Shared host memory: memfd segments, the blocks cut from them, and their reuse.

One pool per process serves every client. A `Segment` is one sealed memfd with its mapping; a `Block` is a piece of one
that an array lives in, or that a call stages an ordinary array through. A block goes back to the pool when Python has
no more references to it, which is after the last view of its array is gone and after the reply of the last call that
used it (calls keep their memory). So in a steady state nothing is mapped and nothing is registered.

The kernel charges a shared page to the process that first touches it. A block's pages are taken here when the block is first
handed out, so that they count as this process's, also where the daemon writes before this process reads. How much there
is to take is looked at before (`check_available`).

Fork. Both sides go on using the segments, so from then on neither may reuse a block that was in use: `epoch` counts
forks, and a block of an older epoch is retired instead of reused. The child also forgets the blocks that were free.
The pool is thread-safe; a block may die on any thread, also inside the pool's own functions (garbage collection).
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import re
import threading
import weakref
from collections import Counter, deque
from collections.abc import Generator, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from .._base.compiled import native
from .._base.errors import NoMemory, OutOfMemory, from_os

MIN_BLOCK = 256
MAX_SLICED = 256 << 10  # blocks up to this size share segments (of SLAB bytes), to save descriptors
SLAB = (64 << 10, 4 << 20)  # at least, at most; in between 64 blocks
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


# Not the module mmap: it keeps a second descriptor for every mapping.
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
MAP_FAILED = ctypes.c_void_p(-1).value
MADV_HUGEPAGE = 14
MADV_POPULATE_WRITE = 23  # since Linux 5.14
TOUCHED_AT_ONCE = (64 << 10, 64 << 20)  # bytes: at least, to save system calls; at most, so that Ctrl-C is heard


def _map(fd: int, size: int) -> int:
    address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address == MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if size >= 4 << 20:
        _libc.madvise(address, size, MADV_HUGEPAGE)  # only a hint
    return int(address)


LARGEST = 2**63 - 1
UNCHECKED = 1 << 20  # bytes; less is granted without a look
KEPT_BACK = 16, 1 << 30  # left to other processes: this fraction, and at most so many bytes


def check_available(size: int) -> None:
    """Raises OutOfMemory where so many bytes of shared memory are more than there is, by libkops' rule (client_c/src/memory/available.h);
    in plain Python where they are more than the machine has."""
    if native is not None:
        native.check_memory(min(size, LARGEST))
    elif size >= UNCHECKED and size > (left := _machine_has()):
        raise OutOfMemory(
            f"{size >> 20} MiB of shared memory were asked for, and this machine (MemAvailable) has {left >> 20} MiB left for this "
            "process: ask for less, or free some first",
            {"asked": size, "available": left, "limit": "this machine (MemAvailable)"},
        )


def _machine_has() -> int:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return LARGEST
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.M)
    size = int(found[1]) * 1024 if found else LARGEST
    return size - min(size // KEPT_BACK[0], KEPT_BACK[1])


class Unknown(Exception):
    """A connection does not know a thing, which is to be made known to it first."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing


class Remote:
    """A thing that a daemon keeps for a connection under an id: `ids` has them by the connection's key."""

    __slots__ = ()
    ids: dict[int, int]
    what = "buffer"  # the kind, as `release` names it

    def at(self, key: int) -> int:
        """Its id on the connection of that key. Raises Unknown."""
        known = self.ids.get(key)
        if known is None:
            raise Unknown(self)
        return known

    def know(self, connection: Any, number: int) -> int:
        """Notes the id that a connection gave; the valid one, since another thread may have been faster."""
        known = self.ids.setdefault(connection.key, number)
        if len(self.ids) > 8:
            prune(self.ids)
        if known != number:
            connection.garbage.append((self.what, number))
        return known


class Source(Remote):
    """Memory that can be registered."""

    __slots__ = ("ids", "base")
    on_host = False

    def __init__(self) -> None:
        self.ids: dict[int, int] = {}
        self.base = 0  # address

    @property
    def feature(self) -> str | None:
        """The feature that the daemon must list to register it."""
        return None

    def registrations(self) -> Generator[tuple[dict[str, Any], tuple[int, ...]], None, None]:
        """The params of `register` and the descriptors that go with it; more follow where one message cannot carry all
        descriptors. Descriptors are good until the next is asked for."""
        raise NotImplementedError

    def forget(self) -> None:
        """A daemon called a registration stale: the next use registers it anew."""
        release(self)


class Segment(Source):
    """A memfd, mapped. Closed by the pool when no block of it is left."""

    __slots__ = ("size", "fd", "address", "blocks", "touched")
    on_host = True
    alone = False

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.blocks = 0  # blocks cut from it, in use or free
        self.touched = 0  # bytes from its start whose pages were taken
        try:
            self.fd = os.memfd_create("kops", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise from_os("memfd_create", error) from error
        try:
            os.ftruncate(self.fd, size)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, SEALS)
            self.address = self.base = _map(self.fd, size)
        except OSError as error:
            os.close(self.fd)
            raise NoMemory(f"cannot make {size} bytes of shared memory: {error.strerror}") from error

    def touch(self, end: int) -> None:
        """Takes the pages up to `end`, and a few more. Raises OutOfMemory. Any thread: at worst two take the same."""
        least, most = TOUCHED_AT_ONCE
        at = self.touched
        while at < end:
            length = min(max(end - at, least), most)
            length = min(-(-length // mmap.PAGESIZE) * mmap.PAGESIZE, self.size - at)
            if _libc.madvise(self.address + at, length, MADV_POPULATE_WRITE):
                self._allocate(at, length, ctypes.get_errno())
            at += length
            self.touched = max(self.touched, at)

    def _allocate(self, at: int, length: int, number: int) -> None:
        """Where the kernel cannot populate: takes the pages without mapping them."""
        try:
            if number not in (errno.EINVAL, errno.EINTR):
                raise OSError(number, os.strerror(number))
            os.posix_fallocate(self.fd, at, length)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise OutOfMemory(f"the system has no memory for the pages of {self.size} bytes: {error.strerror}") from error

    def registrations(self) -> Generator[tuple[dict[str, Any], tuple[int, ...]], None, None]:
        yield {"kind": "memfd", "size": self.size, "fd": 0, "nfds": 1}, (self.fd,)

    def close(self) -> None:
        _libc.munmap(self.address, self.size)
        os.close(self.fd)


class Block:
    """A piece of a segment that exports its bytes as a buffer. Subclasses are ctypes arrays, one for each size."""

    nbytes: int
    segment: Segment | None = None
    offset: int
    epoch: int

    def __del__(self) -> None:
        # Runs in any thread, at any point of any function, so it only appends.
        if self.segment is not None:
            pool.returned.append((self.segment, self.offset, self.nbytes, self.epoch))


def _default_idle() -> int:
    """Free bytes that are kept for reuse: an eighth of the machine's memory, within bounds."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        memory = 0
    return max(512 << 20, min(memory // 8, 8 << 30))


def class_size(size: int) -> int:
    """Rounded up: to a power of two when small, else to an eighth of one, so that little of it is waste."""
    if size <= MIN_BLOCK:
        return MIN_BLOCK
    power = 1 << (size - 1).bit_length()
    if power <= MAX_SLICED:
        return power
    step = max(power >> 4, mmap.PAGESIZE)
    return -(-size // step) * step


class Blocks:
    """Blocks cut from segments, and their reuse. A segment has its `size`, how many `blocks` were cut from it, in use or free, and is
    `alone` where none of them is used again."""

    def __init__(self, idle_limit: int) -> None:
        self.idle_limit = idle_limit  # bytes of free blocks that are kept
        self.epoch = 0  # forks so far
        self.returned: deque[tuple[Any, int, int, int]] = deque()  # blocks that died: segment, offset, size, epoch
        self.bytes = 0  # size of all segments
        self._lock = threading.Lock()
        self._free: dict[int, list[tuple[Any, int]]] = {}
        self._idle = 0
        _all.append(self)

    def trim(self) -> int:
        """Closes every segment that no block in use lies in; the bytes that were given back."""
        with self._lock:
            before = self.bytes
            self._collect()
            self._close_idle(0)
            return before - self.bytes

    def _make(self, size: int) -> Any:
        """A new segment for blocks of that size."""
        raise NotImplementedError

    def _place(self, size: int) -> tuple[Any, int]:
        """A free block of that size: its segment and offset. Under the lock."""
        if self.returned:
            self._collect()
        free = self._free.get(size)
        if free:
            self._idle -= size
            return free.pop()
        segment = self._make(size)
        self.bytes += segment.size
        segment.blocks = segment.size // size
        if segment.blocks > 1:
            self._free.setdefault(size, []).extend((segment, i * size) for i in range(segment.blocks - 1, 0, -1))
            self._idle += (segment.blocks - 1) * size
        return segment, 0

    def _collect(self) -> None:
        """Takes in the blocks that died since."""
        while self.returned:
            segment, offset, size, epoch = self.returned.popleft()
            if epoch == self.epoch and not segment.alone:
                self._free.setdefault(size, []).append((segment, offset))
                self._idle += size
            else:
                self._retire(segment)
        if self._idle > self.idle_limit:
            self._close_idle(self.idle_limit)

    def _retire(self, segment: Any) -> None:
        """A block of it is not used again."""
        segment.blocks -= 1
        if segment.blocks <= 0:
            self._close([segment])

    def _close_idle(self, limit: int) -> None:
        """Closes wholly free segments, those of the largest blocks first, until no more than `limit` bytes are idle."""
        self._count_idle()
        closed: list[Any] = []
        for size in sorted(self._free, reverse=True):
            if self._idle <= limit:
                break  # small sizes have many blocks: they are counted only where it is needed
            gone: set[Any] = set()
            for segment, free in Counter(map(itemgetter(0), self._free[size])).items():
                if free == segment.blocks and self._idle > limit:
                    gone.add(segment)
                    self._idle -= free * size
            if gone:
                self._free[size] = [block for block in self._free[size] if block[0] not in gone]
                closed += gone
        self._close(closed)

    def _count_idle(self) -> None:
        """Anew, since Ctrl-C may have come between a block's move and its count."""
        self._idle = sum(size * len(blocks) for size, blocks in self._free.items())

    def _close(self, segments: list[Any]) -> None:
        for segment in segments:
            self.bytes -= segment.size
            release(segment)
            segment.close()

    def after_fork(self, child: bool) -> None:
        """Nothing that is in use now may be reused, by either side, and nothing that is free by the child."""
        self.epoch += 1
        if child:
            self._lock = threading.Lock()
            free, self._free, self._idle = self._free, {}, 0
            for blocks in free.values():
                for segment, _ in blocks:
                    self._retire(segment)


_all: list[Blocks] = []


def _after_fork(child: bool) -> None:
    for one in list(_all):
        one.after_fork(child)


os.register_at_fork(after_in_parent=lambda: _after_fork(False), after_in_child=lambda: _after_fork(True))


class Pool(Blocks):
    """The process's shared memory. Finds the segment of an address, too."""

    def __init__(self) -> None:
        super().__init__(_default_idle())
        self._types: dict[int, Any] = {}
        self._table: tuple[list[int], list[Segment]] = ([], [])  # by address; replaced, never changed

    def take(self, size: int) -> Any:
        """A block of at least `size` bytes, whose content is whatever was there. Raises OutOfMemory."""
        rounded = class_size(size)
        with self._lock:
            segment, offset = self._place(rounded)
        block = (self._types.get(rounded) or self._type(rounded)).from_address(segment.address + offset)
        block.offset = offset
        block.epoch = self.epoch
        block.segment = segment
        if segment.touched < offset + rounded:
            try:
                segment.touch(offset + rounded)
            except BaseException:
                del block
                self.trim()
                raise
        return block

    def find(self, address: int) -> Segment | None:
        """The segment that holds the address."""
        starts, segments = self._table
        i = bisect.bisect_right(starts, address) - 1
        if i >= 0 and address < starts[i] + segments[i].size:
            return segments[i]
        return None

    def usage(self) -> dict[str, int]:
        """Segments, their bytes, and how many of these are free for reuse."""
        with self._lock:
            self._collect()
            self._count_idle()
            segments = self._table[1]
            return {"segments": len(segments), "bytes": sum(s.size for s in segments), "idle_bytes": self._idle}

    def _type(self, size: int) -> Any:
        made = self._types.get(size)
        if made is None:
            made = self._types[size] = type("Block", (Block, ctypes.c_char * size), {"nbytes": size})
        return made

    def _make(self, size: int) -> Segment:
        whole = max(SLAB[0], min(64 * size, SLAB[1])) if size <= MAX_SLICED else size
        try:
            check_available(whole)
        except OutOfMemory:
            if not self._idle:
                raise
            self._close_idle(0)  # blocks that are kept for reuse are free memory
            check_available(whole)
        segment = Segment(whole)
        starts, segments = list(self._table[0]), list(self._table[1])
        i = bisect.bisect(starts, segment.address)
        starts.insert(i, segment.address)
        segments.insert(i, segment)
        self._table = (starts, segments)
        return segment

    def _close(self, segments: list[Segment]) -> None:
        gone = set(segments)
        left = [s for s in self._table[1] if s not in gone]
        self._table = ([s.address for s in left], left)
        super()._close(segments)


# Connections by key. When a thing ends, each connection that knows it gets the id to release.
garbage: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def prune(ids: dict[int, int]) -> None:
    """Forgets ids on connections that are no more. Other threads may add ids meanwhile: `list` copies them in one step."""
    for key in list(ids):
        if key not in garbage:
            ids.pop(key, None)


def release(thing: Any) -> None:
    """Forgets a thing's ids; each connection releases its own with its next request. It may be a thing that was not made as a whole."""
    ids, thing.ids = getattr(thing, "ids", {}), {}
    for key, number in ids.copy().items():
        connection = garbage.get(key)
        if connection is not None:
            connection.garbage.append((thing.what, number))


pool = Pool()


@contextlib.contextmanager
def code_file(size: int) -> Iterator[int]:
    """A memfd whose pages are this process's own, for the daemon to write to and seal."""
    try:
        fd = os.memfd_create("kops-code", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise from_os("memfd_create", error) from error
    try:
        os.posix_fallocate(fd, 0, size)  # also sets the length of the file
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        yield fd
    except OSError as error:
        raise from_os("memory for a kernel's code", error) from error
    finally:
        os.close(fd)
