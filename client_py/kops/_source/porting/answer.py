"""The answer to a whole source: the lines that have to go, and the Python to paste in place of the call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..hostcode import host_parts
from ..source import scan
from ..tokens import DIRECTIVE, NAME, STRING, Token, directive, tokens
from .expressions import Names, python_name, translate
from .kernels import Kernels
from .statements import Body, Function, function_of, written
from .words import UNREADABLE, Value, closing, joined, read_type, reason, split_at

FOREIGN_HEADERS = ("torch/", "ATen/", "c10/", "pybind11/", "Python.h")
_FOREIGN_WORDS = ("TORCH_CHECK", "AT_ASSERT", "torch::", "at::", "c10::")
_MODULES = ("PYBIND11_MODULE", "TORCH_LIBRARY", "TORCH_LIBRARY_IMPL", "TORCH_LIBRARY_FRAGMENT")
MACROS_DEEP = 16


class Port(NamedTuple):
    """`lines`: the first and last line of each part of the CUDA source that has to go, and what it is. `blanked`: the source with
    blanks in place of those. `entries`: the kernels that are launched. `replacement`: Python. `missing`: what of the C++ has no
    translation, its line and why. `functions`: the names of the functions in Python."""

    lines: list[tuple[int, int, str]]
    blanked: str
    entries: list[str]
    replacement: str
    missing: list[tuple[int, str]]
    functions: list[str]


class _Macro(NamedTuple):
    parameters: list[str] | None
    words: list[Token]


def _closed(text: str) -> bool:
    """Whether a macro's parameters, where it has some, have an end."""
    return ")" in text or "(" not in text


def _macros(found: Iterable[Token]) -> dict[str, _Macro]:
    made = {}
    for token in found:
        word, rest = directive(token) if token.kind == DIRECTIVE else ("", "")
        if word == "define" and _closed(rest):
            name, *words = [Token(t.kind, t.text, t.start, token.line) for t in tokens(rest.replace("#", " __text__ "))] or [token]
            parameters = None
            if words and words[0].text == "(" and rest[len(name.text) : len(name.text) + 1] == "(":
                end = closing(words, 0)
                parameters, words = [t.text for t in words[1:end] if t.text not in (",", "...")], words[end + 1 :]
            made[name.text] = _Macro(parameters, words)
    return made


def _expanded(found: list[Token], macros: Mapping[str, _Macro], depth: int = 0) -> list[Token]:
    """With macros that take arguments replaced by what they stand for."""
    result: list[Token] = []
    i = 0
    while i < len(found):
        macro = macros.get(found[i].text) if found[i].kind == NAME else None
        if macro is None or macro.parameters is None or i + 1 >= len(found) or found[i + 1].text != "(" or depth > MACROS_DEEP:
            result.append(found[i])
            i += 1
            continue
        end = closing(found, i + 1)
        given = dict(zip(macro.parameters, split_at(found[i + 2 : end], ",")))
        made: list[Token] = []
        for j, word in enumerate(macro.words):
            here = Token(word.kind, word.text, word.start, found[i].line)
            if word.text == "__text__":
                continue
            if word.text in given and j and macro.words[j - 1].text == "__text__":
                text = " ".join(token.text for token in given[word.text]).replace("\\", "").replace('"', "'")
                made.append(Token(STRING, f'"{text}"', 0, here.line))
            else:
                made += given.get(word.text, [here])
        result += _expanded(made, macros, depth + 1)
        i = end + 1
    return result


class _File:
    """What the sources have beside functions: constants, which become Python's where a function uses them."""

    def __init__(self, found: list[Token], macros: Mapping[str, _Macro], results: dict[str, str]) -> None:
        self.constants = {name: macro.words for name, macro in macros.items() if macro.parameters is None and macro.words}
        for i, token in enumerate(found):
            begins = i == 0 or found[i - 1].text in (";", "}", "static", "inline") or found[i - 1].kind == DIRECTIVE
            if begins and token.text in ("const", "constexpr"):
                self._constant(found, i)
        self.names = Names(self.value, results)
        self.lines: dict[str, str] = {}
        self._kinds: dict[str, str] = {}
        self._open: set[str] = set()

    def _constant(self, found: list[Token], at: int) -> None:
        end = next((i for i in range(at, len(found)) if found[i].text == ";"), len(found))
        read = read_type(found[:end], at, {})
        if read is not None and read[1] + 2 < end and found[read[1]].kind == NAME and found[read[1] + 1].text == "=":
            self.constants.setdefault(found[read[1]].text, joined(found[read[1] + 2 : end]))

    def value(self, token: Token) -> Value | None:
        """A constant of the file. Raises NotTranslated where it is none of Python's."""
        name = token.text
        if name not in self.constants or name in self._open:
            return None
        if name not in self.lines:
            self._open.add(name)
            made = translate(joined(self.constants[name]), self.names, token.line)
            self._open.discard(name)
            self._kinds[name] = made.kind
            self.lines[name] = f"{python_name(name)} = {made.text}"
        return Value(python_name(name), self._kinds[name])


def _cut(text: str, parts: list[tuple[int, int]]) -> str:
    """The text without these places; lines that are empty then go, too."""
    kept, done = [], 0
    for start, end in sorted(parts):
        kept.append(text[done:start])
        done = max(done, end)
    lines, before = [], True
    for line in ("\0".join([*kept, text[done:]])).split("\n"):
        gone = "\0" in line and not line.replace("\0", "").strip()
        line = line.replace("\0", "").rstrip()
        if not gone and (line or not before):
            lines.append(line)
            before = not line
    return "\n".join(lines).strip("\n") + "\n"


def _blanked(text: str, parts: list[tuple[int, int]]) -> str:
    """The text with blanks in these places: lines keep their numbers."""
    for start, end in parts:
        text = text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]
    return text


def _parts(text: str) -> list[tuple[Token, Token, str, list[Token]]]:
    """What of a source is for the host: its first and last token, what it is, and its tokens."""
    result = []
    for part in host_parts(text):
        plain = [token for token in part if token.kind != DIRECTIVE]
        opening = next((i for i, token in enumerate(plain) if token.text == "(" and i and plain[i - 1].kind == NAME), None)
        what = f"{plain[opening - 1].text}()" if opening is not None else " ".join(token.text for token in plain)[:40]
        result.append((part[0], part[-1], what, plain))
    inside = [(first.start, last.start) for first, last, _, _ in result]
    found = tokens(text)
    for token in found:
        word, rest = directive(token) if token.kind == DIRECTIVE else ("", "")
        foreign = word == "include" and rest.lstrip('<"').startswith(FOREIGN_HEADERS)
        foreign = foreign or (word == "define" and any(name in rest for name in _FOREIGN_WORDS))
        if foreign and not any(first <= token.start <= last for first, last in inside):
            result.append((token, token, f"#{word} {rest}"[:40], []))
    for i, token in enumerate(found[:-2]):
        if token.text == "using" and found[i + 1].text == "namespace" and found[i + 2].text in ("torch", "at", "c10"):
            end = next((j for j in range(i, len(found)) if found[j].text == ";"), i)
            result.append((token, found[end], "using namespace", []))
    return sorted(result, key=lambda part: part[0].start)


def _exported(parts: list[list[Token]]) -> dict[str, str]:
    """What PYBIND11_MODULE and its like give other names: the name in Python and that of the function."""
    names = {}
    for part in parts:
        for i in range(len(part) - 4):
            if part[i].text == "def" and part[i + 1].text == "(" and part[i + 2].kind == STRING:
                function = next((t.text for t in part[i + 3 : i + 8] if t.kind == NAME and t.text not in ("torch", "at")), None)
                if function is not None:
                    names[part[i + 2].text.strip('"').partition("(")[0]] = function
    return names


def _quoted(text: str) -> str:
    for quotes in ('"""', "'''"):
        if quotes not in text and not text.endswith("\\"):
            return f"r{quotes}\n{text}{quotes}"
    return repr(text)


def _functions(places: list[tuple[str, list[Token]]], macros: Mapping[str, _Macro], missing: list[tuple[int, str]]) -> list[Function]:
    functions: list[Function] = []
    for what, plain in places:
        if what.removesuffix("()") in _MODULES or not plain or plain[-1].text != "}":
            continue
        try:
            made = function_of(joined(_expanded(plain, macros)))
        except UNREADABLE as error:
            missing.append(reason(error, plain[0].line))
            continue
        if made is not None and made.name == "main":
            missing.append((made.line, "main() is the program: what it does is the caller's in Python"))
        elif made is not None:
            functions.append(made)
    return functions


def port(
    name: str, cpp: str, cuda: str, wanted: Iterable[str] | None = None, options: Iterable[str] = (), files: Mapping[str, str] | None = None
) -> Port | None:
    """What to do with the sources of an extension module `name`, of which the functions `wanted` were asked for; None where nothing in
    them is for the host. `options` are those of the compile, `files` the paths of the headers that the source includes, by name."""
    parts, others = _parts(cuda), _parts(cpp)
    if not parts and not any("{" in [token.text for token in plain] for _, _, _, plain in others):
        return None
    places = [(first.start, last.start + len(last.text)) for first, last, _, _ in parts]
    source = _cut(cuda, places)
    missing: list[tuple[int, str]] = []
    macros = {**_macros(tokens(cpp)), **_macros(tokens(cuda))}
    in_cpp: list[tuple[int, str]] = []
    functions = _functions([(what, plain) for _, _, what, plain in others], macros, in_cpp)
    cpp_functions = len(functions)
    functions += _functions([(what, plain) for _, _, what, plain in parts], macros, missing)
    file = _File([*tokens(cpp), *tokens(cuda)], macros, {function.name: function.kind for function in functions})
    taken = {"kops", "math", "torch", "types", "source", "files", "pathlib", name}
    for function in functions:
        taken |= {token.text for token in function.body if token.kind == NAME} - _launched(function)
    taken |= {function.name for function in functions} | {param[0] for function in functions for param in function.params}
    how = (f", options={list(options)!r}" if options else "") + (", files=files" if files else "")
    kernels = Kernels(scan(source, {}, options), taken, how)
    bodies: list[str] = []
    for i, function in enumerate(functions):
        names = Names(file.value, file.names.results)
        untold = in_cpp if i < cpp_functions else missing
        try:
            lines = list(written(function, Body(names, kernels, untold)))
            compile("\n".join(lines), name, "exec")  # not run: whether it is Python
            bodies += ["", "", *lines]
        except (*UNREADABLE, SyntaxError) as error:
            untold.append(reason(error, function.line))
    missing += [(line, f"{why} (in cpp_sources)") for line, why in in_cpp]
    exported = _exported([plain for _, _, _, plain in [*others, *parts]])
    known = {function.name for function in functions}
    asked = wanted if wanted is not None else exported or [function.name for function in functions if _launched(function)]
    shown = {one: exported.get(one, one) for one in asked if exported.get(one, one) in known}
    before = list(file.lines.values())
    if files:
        before.insert(0, f"files = {{name: pathlib.Path(path).read_text() for name, path in {dict(files)!r}.items()}}")
    replacement = _module(name, source, kernels, before, bodies, shown, missing)
    gone = [(first.line, last.line + last.text.count("\n"), what) for first, last, what, _ in parts]
    return Port(gone, _blanked(cuda, places), kernels.entries, replacement, sorted(set(missing)), sorted(known))


def _launched(function: Function) -> set[str]:
    """The names before `<<<`, or before the template's arguments that come before it."""
    names: set[str] = set()
    for i, token in enumerate(function.body):
        if token.text == "<<<":
            j = i - 1
            depth = 0
            while j >= 0 and (depth or function.body[j].text == ">"):
                depth += (function.body[j].text == ">") - (function.body[j].text == "<")
                j -= 1
            names.add(function.body[j].text)
    return names


def _module(
    name: str, source: str, kernels: Kernels, constants: list[str], bodies: list[str], shown: Mapping[str, str],
    missing: list[tuple[int, str]],
) -> str:  # fmt: skip
    declared = kernels.declarations(missing)
    headers = [f"#include <{header}>\n" for header in kernels.halves if f"<{header}>" not in source]
    members = ", ".join(f"{one}={python_name(function)}" for one, function in shown.items())
    variable = name if name.isidentifier() and name not in shown.values() else "module"
    rest = [*constants, *([""] if constants else []), *declared, *bodies]
    if members:
        rest += ["", "", f"{variable} = types.SimpleNamespace({members})  # has the functions that the module of load_inline had"]
    text = "\n".join(rest)
    imports = [f"import {module}" for module in ("math", "pathlib", "types") if f"{module}." in text]
    imports += ["", "import kops", *(["import torch"] if "torch." in text else [])]
    return "\n".join([*imports, "", f"source = {_quoted(''.join(headers) + source)}", text]).strip("\n") + "\n"
