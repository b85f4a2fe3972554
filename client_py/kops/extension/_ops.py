"""Functions of a TORCH_LIBRARY as torch's ops, torch.ops.LIBRARY.NAME, as loading a library makes them there."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ._abi import Definition

# Types of C++, as compilers write them, by what a schema has for them. Each inner one comes first.
_IN_SCHEMAS = (
    (r"(?<!long )\bint\b|\bfloat\b|\bunsigned\b", "::"),  # no types of schemas
    (r"\bconst\b|&|, std::allocator<(?:[^<>]|<[^<>]*>)*>", ""),
    (r"std::(?:__cxx11::)?basic_string<char(?:, std::char_traits<char>)? ?>", "str"),
    (r"\bat::Tensor\b", "Tensor"), (r"\blong(?: int)?\b", "int"),
    (r"\bdouble\b", "float"), (r"\bc10::(Scalar|ScalarType|Device)\b", r"\1"),
    (r"std::optional<([\w?\[\]]+) ?>", r"\1?"), (r"(?:std::vector|c10::ArrayRef)<([\w?\[\]]+) ?>", r"\1[]"),
    (r"std::optional<([\w?\[\]]+) ?>", r"\1?"), (r"std::tuple<([^<>]*)>", r"(\1)"), (r"\bvoid\b", "()"),
)  # fmt: skip
_TYPES = r"\bR = (.*?)[;,] A = [{<](.*)[}>]\]$"
_registered: dict[str, Callable[..., Any]] = {}
_libraries: dict[str, Any] = {}  # each keeps the ops of a library in torch


def inferred(definition: Definition) -> str:
    """The schema of a function that was given without one; empty where a type has no name in schemas."""
    found = re.search(_TYPES, definition.signature)
    if found is None:
        return ""
    result, types = found.groups()
    for pattern, text in _IN_SCHEMAS:
        result, types = re.sub(pattern, text, result).strip(), re.sub(pattern, text, types)
    if re.search(r"::|[<>]", result + types):
        return ""
    names = [parameter.name or f"_{i}" for i, parameter in enumerate(definition.parameters)]
    arguments = ", ".join(f"{type.strip()} {name}" for type, name in zip(types.split(","), names))
    return f"({arguments}) -> {result}"


def register(definitions: Sequence[Definition], functions: Mapping[str, Callable[..., Any]]) -> None:
    """Makes ops of the functions that have a library's name, where torch is. One that is there already runs the newer function."""
    torch = sys.modules.get("torch")
    if torch is None:
        return
    for name in dict.fromkeys(definition.name.partition("@")[0] for definition in definitions if "::" in definition.name):
        several = [definition for definition in definitions if definition.name.partition("@")[0] == name]
        schema = next((d.schema[d.schema.index("(") :] for d in several if "(" in d.schema), "") or inferred(several[0])
        library, _, op = name.partition("::")
        known = name in _registered
        _registered[name] = functions[op]
        if known or not schema:
            continue
        if library not in _libraries:
            _libraries[library] = torch.library.Library(library, "FRAGMENT")
        _libraries[library].define(op + schema)
        key = "CompositeExplicitAutograd" if any(definition.key for definition in several) else "CompositeImplicitAutograd"
        _libraries[library].impl(op, lambda *arguments, _name=name, **named: _registered[_name](*arguments, **named), key)
