"""What Python and a compiled extension tell each other: functions of a module, and values that are no plain objects of Python's. The
compiled part of the package reads and writes the values themselves (native/extension.h, include/kops/abi.h)."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

NOT_GIVEN = 255  # a device in options
NO_DTYPE = 44


_COMMA = re.compile(r",(?![^\[]*\])")  # none within a default in brackets
_FUNCTION_TYPE = re.compile(r"\bF = .*?\(\*\)\((.*?)\)[;,]")


class Parameter(NamedTuple):
    """`has_default`: whether the call may leave it out."""

    name: str | None
    has_default: bool
    default: Any


class Definition(NamedTuple):
    """A function that a module has for Python."""

    library: int  # of the compiled part
    number: int
    name: str
    signature: str  # the schema of a TORCH_LIBRARY, or the text of a compiler that has the types in it
    doc: str
    parameters: tuple[Parameter, ...]
    is_declaration: bool = False  # a schema without an implementation

    @property
    def shown(self) -> str:
        """The signature for people: `f(at::Tensor, double)`."""
        found = _FUNCTION_TYPE.search(self.signature)
        return f"{self.name}({found[1]})" if found else self.signature

    @property
    def key(self) -> str:
        """The dispatch key of an implementation of a TORCH_LIBRARY; empty without."""
        return self.name.partition("@")[2]

    @property
    def schema(self) -> str:
        return "" if _FUNCTION_TYPE.search(self.signature) else self.signature


class Slice(NamedTuple):
    """A slice of an index, apart from lists of three numbers."""

    start: int | None
    stop: int | None
    step: int | None


class Options(NamedTuple):
    """What C++ calls TensorOptions: numbers of the dtype and the device; None where they are not given."""

    dtype: int | None
    device: Device | None
    requires_grad: bool
    format: int | None


class Dtype(int):
    """A number of c10::ScalarType."""


class Device(NamedTuple):
    """Numbers of c10::DeviceType and of the device, -1 for the current one."""

    type: int
    number: int


class Format(int):
    """A number of c10::MemoryFormat."""


@lru_cache(maxsize=256)
def options(bits: int, requires_grad: float, more: int) -> Options:
    dtype, device, index = bits & 0xFF, bits >> 8 & 0xFF, bits >> 16 & 0xFF
    return Options(
        None if dtype == NO_DTYPE else dtype, None if device == NOT_GIVEN else Device(device, -1 if index == NOT_GIVEN else index),
        bool(requires_grad), (more >> 8) - 1 if more >> 8 else None,
    )  # fmt: skip


def _schema_parameter(text: str) -> Parameter:
    declared, _, default = text.partition("=")
    try:
        return Parameter(declared.split()[-1], bool(default), ast.literal_eval(default) if default else None)
    except (ValueError, SyntaxError):  # torch's names of dtypes and the like
        return Parameter(declared.split()[-1], False, None)


def declared(definitions: Sequence[Definition]) -> list[Definition]:
    """The functions of a library, with the names and defaults of their schemas. A schema with implementations is none of them."""
    schemas = {d.name: re.split(_COMMA, d.schema[d.schema.index("(") + 1 : d.schema.rindex(")", 0, (d.schema + "->").index("->"))])
               for d in definitions if "(" in d.schema}  # fmt: skip
    implemented = {d.name.partition("@")[0] for d in definitions if not d.is_declaration}
    made = []
    for d in definitions:
        parts = [part for part in schemas.get(d.name.partition("@")[0], ()) if part.strip() not in ("", "*")]
        if len(parts) == len(d.parameters):
            d = d._replace(parameters=tuple(map(_schema_parameter, parts)))
        if not d.is_declaration or d.name not in implemented:
            made.append(d)
    return made
