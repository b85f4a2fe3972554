"""Descriptors to hand to a daemon, good and bad ones, and NumPy arrays in them."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import tempfile
from typing import Any

import numpy as np

SEALS = {
    "seal": fcntl.F_SEAL_SEAL,
    "shrink": fcntl.F_SEAL_SHRINK,
    "grow": fcntl.F_SEAL_GROW,
    "write": fcntl.F_SEAL_WRITE,
}
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2


def make(size: int, seals: tuple[str, ...] | list[str] = ("shrink",), flags: int = 0, allocated: bool = False) -> int:
    """A memfd of `size` bytes with those seals; the caller closes it. `allocated`: it has all its pages."""
    fd = os.memfd_create("kops-test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | flags)
    try:
        os.ftruncate(fd, size)
        if allocated:
            os.posix_fallocate(fd, 0, size)
        bits = 0
        for seal in seals:
            bits |= SEALS[seal]
        if bits:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, bits)
    except OSError:
        os.close(fd)
        raise
    return fd


def allocate_behind_end(fd: int, size: int) -> None:
    """Gives the file pages behind its end, which count as its blocks."""
    _fallocate(fd, FALLOC_FL_KEEP_SIZE, os.fstat(fd).st_size, size)


def punch_hole(fd: int, offset: int, length: int) -> None:
    _fallocate(fd, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, offset, length)


def _fallocate(fd: int, mode: int, offset: int, length: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(length)):
        raise OSError(ctypes.get_errno(), "fallocate")


def make_hugetlb(size: int = 2 << 20) -> int | None:
    """A sealed memfd on hugetlbfs, or None where the kernel has none."""
    try:
        return make(size, ("shrink",), os.MFD_HUGETLB)
    except OSError:
        return None


def from_spec(spec: dict[str, Any]) -> int:
    """A descriptor as the `fds` of a golden vector describe it."""
    if spec["kind"] == "memfd":
        return make(spec["size"], spec["seals"])
    if spec["kind"] == "file":
        with tempfile.TemporaryFile() as file:
            file.truncate(spec["size"])
            return os.dup(file.fileno())
    read, write = os.pipe()
    os.close(write)
    return read


class Shared:
    """A memfd that is mapped here: `bytes` views all of it."""

    def __init__(self, size: int, seals: tuple[str, ...] = ("shrink",)) -> None:
        self.size = size
        self.fd = make(size, seals)
        self.map = mmap.mmap(self.fd, size)
        self.bytes = np.frombuffer(self.map, dtype=np.uint8)

    def view(self, dtype: Any, count: int, offset: int = 0) -> np.ndarray:
        return np.frombuffer(self.map, dtype=dtype, count=count, offset=offset)

    def close_fd(self) -> None:
        """The mapping stays."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.close_fd()
