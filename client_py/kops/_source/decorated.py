"""Kernels that are written as Python functions: annotations for parameters, the docstring for the body."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Annotated, Any, get_origin

from .._base.errors import BadArgument
from .signature import Param, declarations


def _evaluated(value: str, function: Callable[..., object]) -> Any:
    """An annotation that is text because of `from __future__ import annotations`: what it stands for, where that is more
    than a C type."""
    if "[" in value and not value.lstrip().startswith(("'", '"')):
        try:
            found = eval(value, getattr(function, "__globals__", {}), dict(inspect.getclosurevars(function).nonlocals))
        except Exception:  # "float*[n]" is no Python
            return value
        if get_origin(found) is Annotated:
            return found
    return value


def _annotation(name: str, value: Any, function: Callable[..., object]) -> str:
    """The C type that an annotation says: a text, also where it was quoted twice (`from __future__ import annotations`), or
    the first text of an `Annotated`."""
    if isinstance(value, str):
        value = _evaluated(value, function)
    if get_origin(value) is Annotated:
        value = next((text for text in value.__metadata__ if isinstance(text, str)), value)
    if not isinstance(value, str):
        raise BadArgument(
            f"the annotation of {name} must be a C type as a text, such as \"const float*\" or Annotated[Any, \"const float*\"], "
            f"not {value!r}"
        )
    try:
        inner = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    return inner if isinstance(inner, str) else value


def _declaration(name: str, annotation: str) -> str:
    """`out float*[n]` for c: `out float* c[n]`."""
    kind, bracket, sizes = annotation.partition("[")
    return f"{kind} {name}{bracket}{sizes}"


def source_of(function: Callable[..., Any], prelude: str) -> tuple[str, tuple[Param, ...] | None]:
    """The source that a function stands for, and its parameters where the source does not tell them."""
    body = textwrap.dedent(inspect.getdoc(function) or "")
    name = function.__name__
    if not body.strip():
        raise BadArgument(f"{name} has no docstring: it is the kernel's body in CUDA C++")
    parameters = inspect.signature(function).parameters.values()
    annotated = [p for p in parameters if p.annotation is not inspect.Parameter.empty]
    text = ", ".join(_declaration(p.name, _annotation(p.name, p.annotation, function)) for p in annotated)
    if "__global__" in body:
        if annotated and len(annotated) != len(parameters):
            raise BadArgument(f"{name}: annotate all parameters, or none: then the source says what they are")
        return prelude + body + "\n", tuple(d.param for d in declarations(text)) if annotated else None
    if len(annotated) != len(parameters):
        raise BadArgument(f"{name}: annotate every parameter with its C type, such as c: \"out float*\"")
    declared = declarations(text)
    head = f"extern \"C\" __global__ void {name}({', '.join(d.c for d in declared)})"
    return f"{prelude}\n{head}\n{{\n{body}\n}}\n", tuple(d.param for d in declared)
