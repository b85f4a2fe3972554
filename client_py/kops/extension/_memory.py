"""The memory behind the pointers of compiled extensions: tensors that C++ holds, which the compiled part of the package counts, and what
cudaMalloc made."""

from __future__ import annotations

from typing import Any, NamedTuple

from .._companions import compiled_part

_native = compiled_part("an extension")


class Place(NamedTuple):
    """A pointer as a tensor, the address and bytes of its storage, and the byte that the pointer is at. `host`: C++ was told that it is in
    the memory of the CPU."""

    value: Any
    framework: Any
    host: bool
    start: int
    offset: int
    size: int


def find(address: int, inside: bool = False) -> Place | None:
    """The tensor whose storage an address is in, or, unless it has to be inside, right behind."""
    found = _native.extension_find(address % 2**64, inside)
    return None if found is None else Place(*found)


_allocated: dict[int, int] = {}  # ids of the memory of cudaMalloc, by its address


def allocate(value: Any, framework: Any) -> int:
    number, start = _native.extension_allocate(value, framework)
    _allocated[start] = number
    return int(start)


def free(address: int) -> bool:
    number = _allocated.pop(address, None)
    if number is not None:
        _native.extension_release(number)
    return number is not None
