"""What a kernel's `__launch_bounds__` says, for the object to tell: the compiler evaluates it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .._companions import NAME, Token, tokens


class LaunchBounds(NamedTuple):
    arguments: str
    template: str  # the kernel's parameters as a template; empty if it is none


def launch_bounds(texts: Iterable[str], entry: str) -> LaunchBounds | None:
    """None where the source shows none for the kernel, or several."""
    name = entry.partition("<")[0].strip().rpartition("::")[2]
    found = {bounds for text in texts if "__launch_bounds__" in text for bounds in _of_kernel(tokens(text), name)}
    return found.pop() if len(found) == 1 else None


def _of_kernel(items: Sequence[Token], name: str) -> list[LaunchBounds]:
    result = []
    for i, token in enumerate(items):
        if token.text != "__launch_bounds__" or token.kind != NAME:
            continue
        end = _closing(items, i + 1)
        begin, at = i, end + 1
        while begin and items[begin - 1].text not in (";", "{", "}"):
            begin -= 1
        while at < len(items) and items[at].text not in (";", "{", name):
            at += 1
        if at < len(items) and items[at].text == name and at + 1 < len(items) and items[at + 1].text == "(":
            result.append(LaunchBounds(_text(items[i + 2 : end]), _template(items[begin:i])))
    return result


def _closing(items: Sequence[Token], at: int) -> int:
    depth = 0
    for i in range(at, len(items)):
        depth += {"(": 1, ")": -1}.get(items[i].text, 0)
        if depth <= 0:
            return i
    return len(items)


def _template(items: Sequence[Token]) -> str:
    texts = [token.text for token in items]
    if "template" not in texts:
        return ""
    begin, depth = texts.index("template") + 1, 0
    for i in range(begin, len(texts)):
        depth += {"<": 1, ">": -1}.get(texts[i], 0)
        if depth <= 0:
            return _text(items[begin + 1 : i])
    return ""


def _text(items: Sequence[Token]) -> str:
    """The tokens as text: a space only where there was one, or a comment."""
    parts = []
    for i, token in enumerate(items):
        parts.append(token.text)
        if i + 1 < len(items) and items[i + 1].start > token.start + len(token.text):
            parts.append(" ")
    return "".join(parts)
