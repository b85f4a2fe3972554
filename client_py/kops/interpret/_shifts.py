"""Marks the shifts of a source, so that include/kops_host/shifts.h has them give what a GPU gives.

It works on tokens, so a `>>` is told from the end of two templates by what is before it. A shift that is not marked is one of the host's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .._companions import DIRECTIVE, NAME, NUMBER, STRING, Token, tokens

_STREAMS = {"cout", "cerr", "clog", "endl", "ostream", "istream"}
_OPENING, _CLOSING = {"(", "[", "{"}, {")", "]", "}"}
_DEFINE = re.compile(r"#\s*define\b")
_FAR = 256  # tokens between the begin and the end of a template's arguments


def mark(text: str) -> str:
    """The source with `a << kops_host_shift + b` for `a << b`; lines stay where they are."""
    if "<<" not in text and ">>" not in text:
        return text
    parts, end = [], 0
    for at, length, new in _places(text, 0):
        parts += [text[end:at], new]
        end = at + length
    return "".join([*parts, text[end:]])


def _places(text: str, base: int) -> list[tuple[int, int, str]]:
    """Where, how much and what to put there."""
    found: list[tuple[int, int, str]] = []
    items = tokens(text)
    open_templates = [0]  # for each bracket
    is_stream = False  # of the statement
    i = 0
    while i < len(items):
        token = items[i]
        if token.kind == DIRECTIVE:
            found += [(base + at, length, new) for at, length, new in _in_define(token)]
        elif token.text in _OPENING:
            open_templates.append(0)
        elif token.text in _CLOSING:
            open_templates[-2:] = open_templates[-2:-1] or [0]
        is_stream = token.text in _STREAMS or (is_stream and token.text not in (";", "{", "}"))
        if token.text in (";", "{", "}"):
            open_templates[-1] = 0
        n = _run(items, i) if token.text in "<>" else 0
        if n >= 2 and (token.text == "<" or (n == 2 and open_templates[-1] < 2)):
            assigns = _follows(items, i + 1, "=")
            if n == 2 and not is_stream and _counts(items, i, i + 2 + assigns):
                at = token.start + 2 + assigns
                found.append((base + at, 0, "kops_host_shift_to = " if assigns else "kops_host_shift + "))
            i += n
            continue
        if token.text == ">":
            open_templates[-1] = max(open_templates[-1] - n, 0)
        elif token.text == "<" and _begins_template(items, i):
            open_templates[-1] += 1
        i += max(n, 1)
    return found


def _in_define(token: Token) -> list[tuple[int, int, str]]:
    found = _DEFINE.match(token.text)
    return _places(token.text[found.end() :], token.start + found.end()) if found else []


def _follows(items: Sequence[Token], i: int, text: str) -> bool:
    return i + 1 < len(items) and items[i + 1].text == text and items[i + 1].start == items[i].start + len(items[i].text)


def _run(items: Sequence[Token], i: int) -> int:
    """How many of the same token stand there without a space."""
    n = 1
    while _follows(items, i + n - 1, items[i].text):
        n += 1
    return n


def _counts(items: Sequence[Token], before: int, after: int) -> bool:
    """Whether a shift between these tokens is one of numbers that may be by too much."""
    if not before or after >= len(items):
        return False
    previous, following = items[before - 1], items[after]
    if "..." in (previous.text, following.text) or STRING in (previous.kind, following.kind) or previous.text == "operator":
        return False
    if any(token.text in _STREAMS for token in items[after : after + 3]):
        return False
    if following.kind == NUMBER and following.text.isdigit() and int(following.text) < 32:
        return after + 1 < len(items) and items[after + 1].text in ("+", "-", "*", "/", "%")
    return True


def _begins_template(items: Sequence[Token], i: int) -> bool:
    """Whether a `<` looks like the begin of a template's arguments or parameters."""
    if not i or items[i - 1].kind != NAME or _follows(items, i, "="):
        return False
    depth, inside = 0, 1
    for k in range(i + 1, min(i + _FAR, len(items))):
        text = items[k].text
        if text in _OPENING and text != "{":
            depth += 1
        elif text in _CLOSING and text != "}":
            depth -= 1
        if depth < 0 or text in (";", "{", "}") or items[k].kind == DIRECTIVE:
            return False
        if depth:
            continue
        logical = text in "&|" and _follows(items, k, text) and not (k + 2 < len(items) and items[k + 2].text in (",", ">", "..."))
        if logical or text in ("?", "||"):
            return False
        inside += (text == "<") - (text == ">")
        if not inside:
            return True
    return False
