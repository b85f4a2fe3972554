"""The symbols of an object file: which are left to the linker, and which are shared variables."""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

_SYMBOL_TABLE, _HIDDEN, _THREAD_LOCAL = 2, 2, 6
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")


class Symbol(NamedTuple):
    name: str
    value: int
    size: int
    type: int
    visibility: int
    section: int  # 0: not defined here


def symbols(data: bytes) -> list[Symbol]:
    """All symbols of a 64-bit little-endian ELF file."""
    (sections_at,) = struct.unpack_from("<Q", data, 0x28)
    size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [_SECTION.unpack_from(data, sections_at + i * size) for i in range(count)]
    found = []
    for section in sections:
        if section[1] != _SYMBOL_TABLE:
            continue
        names = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], _SYMBOL.size):
            name, info, other, index, value, length = _SYMBOL.unpack_from(data, at)
            start = names + name
            text = data[start : data.index(b"\0", start)].decode()
            found.append(Symbol(text, value, length, info & 15, other & 3, index))
    return found


def dynamic_names(data: bytes) -> list[str]:
    """Names of the arrays that were declared `extern __shared__`."""
    return sorted({s.name for s in symbols(data) if s.section == 0 and s.visibility == _HIDDEN and s.name})


def plain_name(mangled: str) -> str:
    """The last part of a mangled name: `tile` of `_ZZ9transposePfE4tile`."""
    if not mangled.startswith("_Z"):
        return mangled
    best = ""
    for match in re.finditer(r"\d+", mangled):
        digits = match.group()
        for skip in range(len(digits)):  # a count may follow another number
            length, start = int(digits[skip:]), match.end()
            name = mangled[start : start + length]
            if length and len(name) == length and not name[0].isdigit():
                best = name
                break
    return best or mangled


def guards(data: bytes) -> list[int]:
    """Offsets of the marks that say whether a shared variable has been initialised, which compilers add to some classes."""
    return sorted(s.value for s in symbols(data) if s.type == _THREAD_LOCAL and s.section and s.name.startswith("_ZGV"))


def shared_variables(data: bytes) -> list[tuple[int, int, str]]:
    """Offset, size and mangled name of each static shared variable, in order."""
    found = (s for s in symbols(data) if s.type == _THREAD_LOCAL and s.section and not s.name.startswith("_ZGV"))
    return sorted((s.value, s.size, s.name) for s in found)


def static_bytes(shared: list[tuple[int, int, str]], kernel: str) -> int:
    """Bytes of the shared variables that a kernel declares itself, of its largest instance, and of those outside of functions."""
    name = f"{len(kernel)}{kernel}"
    by_function: dict[str, int] = {}
    for _, size, mangled in shared:
        function = mangled.rpartition(f"E{len(plain_name(mangled))}{plain_name(mangled)}")[0] if mangled.startswith("_ZZ") else ""
        by_function[function] = by_function.get(function, 0) + size
    own = [size for function, size in by_function.items() if name in function]
    return by_function.get("", 0) + max(own, default=0)
