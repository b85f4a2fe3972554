"""The tensors that compiled extensions hold, by their ids, and the memory behind a kernel's pointers."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

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

    __slots__ = ("count", "framework", "host", "size", "start", "value", "whole_dtype")

    def __init__(self, value: Any, framework: Any, host: bool) -> None:
        self.value, self.framework, self.host, self.count = value, framework, host, 1
        self.renew()

    def renew(self) -> None:
        """Finds the storage, which a function may have changed. `whole_dtype`: the name of the dtype where the tensor is all of it."""
        self.start, self.size = self.framework.storage(self.value)
        self.whole_dtype = self.framework.whole_dtype(self.value, self.size)


class Place(NamedTuple):
    """A pointer as a tensor, and the byte of its storage."""

    held: Held
    offset: int


def hold(value: Any, framework: Any, host: bool) -> int:
    """The id of a tensor with one more reference of C++."""
    with _lock:
        number = _numbers.get(id(value), 0)
        found = _held.get(number)
        if found is not None and found.host == host:
            found.count += 1
            found.renew()
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
    _allocated[made.start] = made
    return int(made.start)


def free(address: int) -> bool:
    return _allocated.pop(address, None) is not None


def _all() -> Iterator[Held]:
    yield from list(_held.values())
    yield from list(_allocated.values())
    yield from reversed(_recent.held)


def find(address: int, inside: bool = False) -> Place | None:
    """The tensor whose storage an address is in, or, unless it has to be inside, right behind."""
    behind = None
    for one in _all():
        offset = address - one.start
        if 0 <= offset < one.size:
            return Place(one, offset)
        if offset == one.size and not inside and behind is None:
            behind = Place(one, offset)
    return behind
