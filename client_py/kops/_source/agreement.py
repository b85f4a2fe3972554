"""A declared parameter list held against the one that the source has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .._base.declarations import DTYPES
from .signature import Param
from .types import C_NAMES, Type, same_memory

__all__ = ["Found", "disagreement"]


class Found(NamedTuple):
    """A parameter in the source."""

    text: str  # as C has it
    pointer: bool
    type: Type | None  # type of the elements, or of the scalar; None: void, or an unknown type
    size: int = 0  # bytes of the scalar; 0: not known


def _differs(declared: Param, found: Found) -> bool:
    tensor = declared.kind != "scalar"
    if tensor != found.pointer or declared.map is not None:
        return True
    if found.type is None:
        return not tensor and found.size not in (0, declared.lanes * DTYPES[declared.dtype])
    if tensor:
        return not same_memory(declared.dtype, found.type)
    if declared.lanes > 1 and declared.dtype == "u8":  # any structure
        return found.type.lanes * DTYPES[found.type.dtype] != declared.lanes
    return found.type.lanes != declared.lanes or not same_memory(declared.dtype, found.type)


def _advice(declared: Param, found: Found) -> str:
    if found.type is None:
        return "declare it as that is"
    name = C_NAMES[found.type.dtype]
    if found.type.lanes > 1 and not found.pointer:
        return f"it has {found.type.lanes} numbers of {found.type.dtype}: write its own type in the signature"
    if not found.pointer:
        return f"write `{name} {declared.name}` in its signature"
    const = {"in": "const ", "out": "out "}.get(declared.kind, "")
    return f"write `{const}{name}* {declared.name}` in its signature, and give it elements of {found.type.dtype}"


def disagreement(entry: str, declared: Sequence[Param], source: Sequence[Found | None]) -> str | None:
    """The first thing in which they differ, and what to write; None if nothing does. A parameter of the source that is
    None could not be read, and agrees with everything."""
    if len(declared) != len(source):
        return f"{entry} has {len(source)} parameters in the source, {len(declared)} are declared"
    for i, (one, found) in enumerate(zip(declared, source)):
        if found is not None and _differs(one, found):
            what = "a tensor" if one.kind != "scalar" else "a scalar"
            return (
                f"{entry}, parameter {i + 1} ({one.name}): declared as {what} of {one.dtype} ({C_NAMES[one.dtype]}), in the source it "
                f"is `{found.text}`: {_advice(one, found)}"
            )
    return None
