"""C++ source as tokens: just enough to find kernels, their parameters and what a file includes.

No preprocessor: a directive is one token, and macros are seen as the names that they are. Whoever uses the tokens gives
up where that could matter.
"""

from __future__ import annotations

import string
from typing import NamedTuple

NAME, NUMBER, STRING, DIRECTIVE, PUNCTUATION = "name", "number", "string", "directive", "punctuation"

_FIRST = frozenset(string.ascii_letters + "_$")
_REST = frozenset(string.ascii_letters + string.digits + "_$")
_NUMBER = _REST | {".", "'"}
_QUOTING = frozenset("\"'RLuU")  # may begin a string
_PLAIN = _REST | frozenset(" \t,;()*&{}[]=+") - _QUOTING  # no line ends in what begins so
_LONG = ("<<<", ">>>", "::", "->", "...")  # longest first; a template's >> stays two tokens


class Token(NamedTuple):
    kind: str
    text: str
    start: int  # in the source
    line: int  # from 1


def tokens(source: str) -> list[Token]:
    """The tokens, without comments. What ends in the middle (a comment, a string) ends with the source."""
    result: list[Token] = []
    at, line, fresh, size = 0, 1, True, len(source)  # fresh: nothing but spaces since the line's begin
    while at < size:
        c = source[at]
        end, kind = at + 1, ""
        if c == "\n":
            fresh = True
        elif c in " \t\r\v\f":
            pass
        elif c == "/" and source.startswith("//", at):
            end = _line_end(source, at)
        elif c == "/" and source.startswith("/*", at):
            end = _after(source, "*/", at + 2)
        elif c == "\\" and source.startswith("\\\n", at):
            end = at + 2
        elif c == "#" and fresh:
            kind, end = DIRECTIVE, _line_end(source, at)
        elif c in _QUOTING and (end := _string_end(source, at)) > at:
            kind = STRING
        elif c in _FIRST:
            kind, end = NAME, _run_end(source, at, _REST)
        elif c in string.digits:
            kind, end = NUMBER, _run_end(source, at, _NUMBER)
        else:
            kind, end = PUNCTUATION, at + 1
            if c in "<>:-.":
                end = at + next((len(long) for long in _LONG if source.startswith(long, at)), 1)
        if kind:
            result.append(Token(kind, source[at:end], at, line))
            fresh = False
        if c not in _PLAIN:
            line += source.count("\n", at, end)
        at = end
    return result


def _run_end(source: str, at: int, members: frozenset[str]) -> int:
    while at < len(source) and source[at] in members:
        at += 1
    return at


def _after(source: str, text: str, at: int) -> int:
    found = source.find(text, at)
    return len(source) if found < 0 else found + len(text)


def _line_end(source: str, at: int) -> int:
    """Where a line ends that may be continued by backslashes, and that may hold a comment of several lines."""
    while at < len(source) and source[at] != "\n":
        if source.startswith(("\\\n", "\\\r\n"), at):
            at = source.index("\n", at) + 1
        elif source.startswith("/*", at):
            at = _after(source, "*/", at + 2)
        else:
            at += 1
    return at


def _string_end(source: str, at: int) -> int:
    """The end of the string or character that begins there; `at` where none does."""
    for prefix in ("",) if source[at] in "\"'" else ("R", "L", "u8", "u", "U", "u8R", "uR", "UR", "LR"):
        if not source.startswith(prefix, at):
            continue
        quote = source[at + len(prefix) : at + len(prefix) + 1]
        if prefix.endswith("R"):
            opening = source.find("(", at)
            if quote == '"' and opening >= 0:
                return _after(source, ")" + source[at + len(prefix) + 1 : opening] + '"', opening)
        elif quote and quote in "\"'":
            return _quoted_end(source, at + len(prefix) + 1, quote)
    return at


def _quoted_end(source: str, at: int, quote: str) -> int:
    while at < len(source) and source[at] not in (quote, "\n"):
        at += 2 if source[at] == "\\" else 1
    return min(at + 1, len(source))


def directive(token: Token) -> tuple[str, str]:
    """A directive's word and the rest of it, `define` and `N 3`."""
    text = token.text.replace("\\\r\n", " ").replace("\\\n", " ").lstrip()[1:].lstrip()
    end = _run_end(text, 0, _REST)
    return text[:end], text[end:].strip()


def defined(found: list[Token]) -> set[str]:
    """The macros that the source defines, wherever."""
    names = set()
    for token in found:
        if token.kind == DIRECTIVE:
            word, rest = directive(token)
            if word == "define":
                names.add(rest[: _run_end(rest, 0, _REST)])
    return names


def included(found: list[Token]) -> list[tuple[str, bool, int]]:
    """What the source includes: the name, whether in angle brackets, and the line."""
    result = []
    for token in found:
        word, rest = directive(token) if token.kind == DIRECTIVE else ("", "")
        if word == "include" and len(rest) > 2 and rest[0] in '<"':
            end = rest.find(">" if rest[0] == "<" else '"', 1)
            if end > 0:
                result.append((rest[1:end], rest[0] == "<", token.line))
    return result
