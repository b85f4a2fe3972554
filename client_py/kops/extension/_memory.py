"""The tensors that compiled extensions hold, by their ids, and the memory behind a kernel's pointers."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from typing import Any

RECENT = 16  # tensors that were released: a pointer into one may still be on its way to a launch
_ids = itertools.count(1)
_held: dict[int, Held] = {}
_numbers: dict[int, int] = {}  # ids, by what the tensor is: it has one, however often C++ gets it
_lock = threading.RLock()


class _Recent(threading.local):
    """Of a thread alone: the end of a call is none of another thread's."""

    def __init__(self) -> None:
        self.held: deque[Held] = deque(maxlen=RECENT)


_recent = _Recent()


class Held:
    """A tensor in C++. `host`: C++ is told that it is in the memory of the CPU."""

    __slots__ = ("count", "framework", "host", "storage", "value")

    def __init__(self, value: Any, framework: Any, host: bool) -> None:
        self.value, self.framework, self.host, self.count = value, framework, host, 1
        self.storage: tuple[int, int] | None = None  # its address and bytes, found when a pointer is looked up

    def place(self) -> tuple[int, int]:
        """The address of the storage, and its bytes."""
        found = self.storage
        if found is None:
            found = self.storage = self.framework.storage(self.value)
        return found


Place = tuple[Held, int, int]  # a pointer as a tensor, the byte of its storage, and how many that has


def hold(value: Any, framework: Any, host: bool) -> int:
    """The id of a tensor with one more reference of C++."""
    with _lock:
        number = _numbers.get(id(value), 0)
        found = _held.get(number)
        if found is not None and found.host == host:
            found.count += 1
            found.storage = None  # a function may have changed it
            return number
        number = next(_ids)
        _held[number] = Held(value, framework, host)
        _numbers[id(value)] = number
        return number


def held(number: int) -> Held:
    return _held[number]


def retain(number: int) -> None:
    with _lock:
        _held[number].count += 1


def release(number: int, keep: bool = True) -> None:
    """Takes a reference back. `keep`: a pointer into the tensor may be on its way."""
    with _lock:
        found = _held.get(number)
        if found is None:
            return
        found.count -= 1
        if found.count == 0:
            del _held[number]
            if _numbers.get(id(found.value)) == number:
                del _numbers[id(found.value)]
            if keep:
                _recent.held.append(found)


def forget_released() -> None:
    """At the end of a call no pointer is on its way."""
    _recent.held.clear()


# Memory of cudaMalloc, by its address.
_allocated: dict[int, Held] = {}


def allocate(value: Any, framework: Any) -> int:
    made = Held(value, framework, False)
    start = made.place()[0]
    _allocated[start] = made
    return start


def free(address: int) -> bool:
    return _allocated.pop(address, None) is not None


def find(address: int, inside: bool = False) -> Place | None:
    """The tensor whose storage an address is in, or, unless it has to be inside, right behind."""
    behind = None
    for one in (*_held.values(), *_allocated.values(), *reversed(_recent.held)):
        start, size = one.storage or one.place()
        offset = address - start
        if 0 <= offset < size:
            return one, offset, size
        if offset == size and not inside and behind is None:
            behind = one, offset, size
    return behind
