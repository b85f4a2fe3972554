"""What a CUDA source contains: its kernels, their parameters, and the files that it includes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ._errors import BadArgument
from ._signature import NotParsed, Param, read, split
from ._tokens import DIRECTIVE, NAME, PUNCTUATION, STRING, Token, defined, included, tokens

# What may stand between `__global__` and the kernel's name; with an argument in parentheses.
SPECIFIERS = ("void", "static", "inline", "__inline__", "__forceinline__", "__noinline__", "extern", "__global__")
ATTRIBUTES = ("__launch_bounds__", "__cluster_dims__", "__maxnreg__", "__block_size__", "__attribute__")


@dataclass(frozen=True)
class Definition:
    """A kernel where the source defines or declares it."""

    name: str  # with its namespaces
    template: bool
    params: tuple[Token, ...]
    line: int


@dataclass
class Scan:
    """What was found in a source."""

    text: str
    found: list[Token]
    kernels: list[Definition] = field(default_factory=list)
    macros: set[str] = field(default_factory=set)
    types: set[str] = field(default_factory=set)  # that the source declares


def _closing(found: list[Token], at: int) -> int:
    """The place of the parenthesis that closes the one at `at`; -1 where none does."""
    depth = 0
    for i in range(at, len(found)):
        depth += {"(": 1, ")": -1}.get(found[i].text, 0)
        if depth == 0:
            return i
    return -1


def _kernel(found: list[Token], at: int, scope: str) -> Definition | None:
    """The kernel whose `__global__` is at `at`."""
    i = at + 1
    while i < len(found):
        token = found[i]
        if token.text in ATTRIBUTES and i + 1 < len(found) and found[i + 1].text == "(":
            i = _closing(found, i + 1)
            if i < 0:
                return None
        elif token.text not in SPECIFIERS and token.kind != STRING:
            break
        i += 1
    if i + 1 >= len(found) or found[i].kind != NAME or found[i + 1].text != "(":
        return None  # a specialisation of a template, or something else that has no plain name
    end = _closing(found, i + 1)
    if end < 0:
        return None
    begin = at
    while begin > 0 and found[begin - 1].text not in (";", "}", "{") and found[begin - 1].kind != DIRECTIVE:
        begin -= 1
    template = any(token.text == "template" for token in found[begin:at])
    return Definition(scope + found[i].text, template, tuple(found[i + 2 : end]), found[i].line)


def _namespace(found: list[Token], at: int) -> tuple[str, int] | None:
    """The scope that a `namespace` at `at` opens, and the place of its brace."""
    i, name = at + 1, ""
    while i < len(found) and found[i].kind in (NAME, PUNCTUATION) and found[i].text not in ("{", ";", "="):
        name += found[i].text
        i += 1
    return (name + "::" if name else "", i) if i < len(found) and found[i].text == "{" else None


def scan(text: str, files: Mapping[str, str] | None = None, options: Iterable[str] = ()) -> Scan:
    """Looks through a source. Macros and types of its files count as well."""
    made = Scan(text, tokens(text))
    for option in options:
        if option.startswith("-D"):
            made.macros.add(option[2:].strip().partition("=")[0].partition("(")[0])
        elif option.startswith("--define-macro="):
            made.macros.add(option.partition("=")[2].partition("=")[0])
    for other in (made.found, *(tokens(file) for file in (files or {}).values())):
        made.macros |= defined(other)
        _types(other, made.types)
    scopes: list[str] = []
    i = 0
    while i < len(made.found):
        word = made.found[i].text
        if word == "namespace" and (opened := _namespace(made.found, i)) is not None:
            scopes.append(opened[0])
            i = opened[1]
        elif word == "{":
            scopes.append("")
        elif word == "}" and scopes:
            scopes.pop()
        elif word == "__global__" and (kernel := _kernel(made.found, i, "".join(scopes))) is not None:
            made.kernels.append(kernel)
        i += 1
    return made


def _types(found: list[Token], into: set[str]) -> None:
    for i, token in enumerate(found):
        if token.text in ("struct", "class", "union", "enum", "using") and i + 1 < len(found):
            into.add(found[i + 1].text)
        elif token.text == "typedef":
            depth, end = 0, i
            while end < len(found) and not (depth <= 0 and found[end].text == ";"):
                depth += {"{": 1, "}": -1}.get(found[end].text, 0)
                end += 1
            into.add(found[end - 1].text)


def names(made: Scan) -> list[str]:
    """The kernels that are no templates, each once, in the source's order."""
    return list(dict.fromkeys(kernel.name for kernel in made.kernels if not kernel.template))


def signature(made: Scan, entry: str) -> tuple[Param, ...]:
    """The parameters of a kernel, where the source says them plainly. Raises BadArgument, which asks for them."""
    ask = f"give the signature of {entry}, such as \"float* c, const float* a, int n\""
    if "<" in entry:
        raise BadArgument(f"the parameters of a template depend on its arguments: {ask}", {"key": "signature"})
    same = [kernel for kernel in made.kernels if entry in (kernel.name, kernel.name.rpartition("::")[2])]
    if not same:
        have = names(made)
        shown = f"; it has {', '.join(have)}" if have else ""
        raise BadArgument(f"the source shows no kernel {entry}{shown}: {ask}", {"key": "signature"})
    if any(kernel.template for kernel in same):
        raise BadArgument(f"{entry} is a template: name it with its arguments, {entry}<…>, and {ask}", {"key": "signature"})
    if len({(kernel.name, tuple(token.text for token in kernel.params)) for kernel in same}) > 1:
        lines = ", ".join(str(kernel.line) for kernel in same)
        raise BadArgument(f"the source shows {entry} in several forms (lines {lines}): {ask}", {"key": "signature"})
    (kernel, *_) = same
    for token in kernel.params:
        if token.kind == DIRECTIVE:
            raise BadArgument(f"a preprocessor directive is in the parameters of {entry}: {ask}", {"key": "signature"})
        if token.kind == NAME and token.text in made.macros:
            raise BadArgument(f"{token.text}, in the parameters of {entry}, is a macro: {ask}", {"key": "signature"})
        if token.text == "=":
            raise BadArgument(f"{entry} has a parameter with a default: {ask}", {"key": "signature"})
    for token in (token for part in split(kernel.params) for token in part[:-1]):  # the last one is the name
        if token.kind == NAME and token.text in made.types:
            raise BadArgument(f"{token.text}, in the parameters of {entry}, is a type of the source's own: {ask}", {"key": "signature"})
    try:
        return tuple(declared.param for declared in read(kernel.params, made.text, only_c=True))
    except NotParsed as error:
        raise BadArgument(f"{entry}, {error}: {ask}", {"key": "signature"}) from None


def gather(text: str, directory: Path, more: Iterable[str | os.PathLike[str]] = ()) -> dict[str, str]:
    """The files that a source includes, and those that they include, by the names that they are included by. Looked for
    beside the including file, then in `more`; what is in neither is left to the compiler. Raises BadArgument where one
    name means two files."""
    files: dict[str, str] = {}
    places: dict[str, Path] = {}
    waiting = [(text, directory)]
    while waiting:
        source, here = waiting.pop()
        for name, angled, _line in included(tokens(source)):
            folders = [Path(folder) for folder in more]
            path = next((p for f in ([] if angled else [here]) + folders if (p := f / name).is_file()), None)
            if path is None:
                continue
            path = path.resolve()
            if name in places:
                if places[name] != path:
                    raise BadArgument(f"#include {name!r} means {places[name]} and {path}: give them different names")
                continue
            places[name] = path
            files[name] = path.read_text(encoding="utf-8")
            waiting.append((files[name], path.parent))
    return files
