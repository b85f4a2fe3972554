"""How much memory this process may still take, read before shared memory is made.

The result is the smallest of four figures: the machine's MemAvailable; the free part of the process's memory control group and
of each group above it; RLIMIT_AS; RLIMIT_FSIZE, which also bounds memfds. Control groups may be of version 1 or 2. File pages that
the kernel can drop count as free. A sixteenth of the first two, 1 GiB at most, is left to other processes. A figure that
cannot be read bounds nothing.

libkops has the same rule in available.c; `tests/available.json` has cases that both are tested with.
"""

from __future__ import annotations

import math
import mmap
import os
import resource
from collections.abc import Iterator
from typing import NamedTuple

from .._base.errors import OutOfMemory

UNCHECKED = 1 << 20  # bytes; less is granted without a look
KEPT_BACK = 16, 1 << 30  # one part of so many, and bytes at most
LARGEST_FILE = 2**63 - 1
LONGEST = 64 << 10  # of these files
UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


class Bound(NamedTuple):
    size: int
    of: str  # the limit it is of, for people


def _text(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, LONGEST).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _fields(text: str) -> dict[str, int]:
    """The lines of the form `name value …` or `name: value …`."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and (value := _number(words[1])) is not None:
            found[words[0].rstrip(":")] = value
    return found


def _shared(size: int) -> int:
    """The part of it that one process should take."""
    parts, most = KEPT_BACK
    return size - min(size // parts, most)


def _machine(root: str) -> Iterator[Bound]:
    available = _fields(_text(f"{root}/proc/meminfo")).get("MemAvailable")
    if available is not None:
        yield Bound(_shared(available * 1024), "this machine (MemAvailable)")


# Folder, limit, usage, prefix of the fields of memory.stat.
VERSION_1 = ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
VERSION_2 = ("/sys/fs/cgroup", "memory.max", "memory.current", "")


def _groups(root: str, enough: float) -> Iterator[Bound]:
    for line in _text(f"{root}/proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            version = VERSION_1
        elif number == "0" and not controllers:
            version = VERSION_2
        else:
            continue
        folder, limit, usage, prefix = version
        path = path.rstrip("/")
        while True:
            at = f"{root}{folder}{path}"
            most, used = _number(_text(f"{at}/{limit}")), _number(_text(f"{at}/{usage}"))
            if most is not None and used is not None:
                files = 0
                if _shared(most - used) < enough:  # reading it costs the kernel more than all else
                    stat = _fields(_text(f"{at}/memory.stat"))
                    files = stat.get(f"{prefix}inactive_file", 0) + stat.get(f"{prefix}active_file", 0)
                yield Bound(_shared(max(0, most - max(0, used - files))), f"the memory control group {path or '/'}")
            if not path:
                break
            path = path.rpartition("/")[0]


def _limits(root: str, address_space: int, file_size: int) -> Iterator[Bound]:
    if address_space != resource.RLIM_INFINITY:
        words = _text(f"{root}/proc/self/statm").split()
        taken = _number(words[0]) if words else None
        yield Bound(max(0, address_space - (taken or 0) * mmap.PAGESIZE), "RLIMIT_AS")
    if file_size != resource.RLIM_INFINITY:
        yield Bound(file_size, "RLIMIT_FSIZE")


def bound(
    enough: float = math.inf, root: str = "", address_space: int | None = None, file_size: int | None = None
) -> Bound | None:
    """The least bound, exact where it is below `enough`; None where there is none. Tests say where /proc and /sys are, and
    the limits."""
    if address_space is None:
        address_space = resource.getrlimit(resource.RLIMIT_AS)[0]
    if file_size is None:
        file_size = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    bounds = [*_machine(root), *_groups(root, enough), *_limits(root, address_space, file_size)]
    return min(bounds, key=lambda one: one.size) if bounds else None


def amount(size: int) -> str:
    """Bytes for people: "3.7 GiB"."""
    if size < 1024:
        return f"{size} bytes"
    unit = 1
    while size >= 1 << 20 and unit < len(UNITS) - 1:
        unit, size = unit + 1, size >> 10
    tenths = size * 10 >> 10
    return f"{tenths // 10}.{tenths % 10} {UNITS[unit]}"


def check(size: int) -> None:
    """Raises OutOfMemory where so many bytes of shared memory are more than there is."""
    if size < UNCHECKED:
        return
    least = bound(size) or Bound(LARGEST_FILE, "a file")
    if size > min(least.size, LARGEST_FILE):
        raise OutOfMemory(
            f"{amount(size)} of shared memory were asked for, and {least.of} has {amount(least.size)} left for this process: ask "
            "for less, or free some first",
            {"asked": size, "available": least.size, "limit": least.of},
        )
