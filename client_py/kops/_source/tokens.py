"""C++ source as tokens: just enough to find kernels, their parameters and the files that it includes.

No preprocessor: a directive is one token, and macros are seen as the names that they are. Callers give up where that could
matter.
"""

from __future__ import annotations

import re
from typing import NamedTuple

NAME, NUMBER, STRING, DIRECTIVE, PUNCTUATION = "name", "number", "string", "directive", "punctuation"

# Classes name the characters that are none of theirs: all beyond ASCII may be part of a name, and `re` compiles that range in milliseconds.
_WORD = r"[^\x00-#%-/:-@\[-^`{-\x7f]"  # of a name: letters, digits, _ and $
_NAME = re.compile(rf"{_WORD}*")
_STRING = re.compile(r"""(u8|[LuU]?)(?:(R")|(["']))""")
_RAW = re.compile(r'[^(]{0,16}(?=\()')  # the mark of a raw string
# Spaces, and the commonest tokens; nothing after the spaces where another token comes. A template's >> is two tokens.
_COMMON = re.compile(
    rf"""[ \t\r\v\f]*(?:
    ([^\x00-#%-@LRU\[-^`u{{-\x7f]{_WORD}*)
    |([;,()*&{{}}\[\]=+!?%|^~@`>] | <<<|<|::|:|->|-|\.\.\.|\.(?![0-9])|/(?![/*]) | [\x00-\x08\x0e-\x1f\x7f])
    |(\n[ \t\r\v\f\n]*)
    |(\.?[0-9](?:[eEpP][+-]|'(?={_WORD})|[^\x00-#%-\-/:-@\[-^`{{-\x7f])*)
    |((?!(?:u8|[LuU])?(?:R?"|'))[LRuU]{_WORD}*)
    )?""",
    re.X,
)
_KINDS = ("", NAME, PUNCTUATION, "", NUMBER, NAME)  # kinds of the groups
_BREAKS = 3
# The rest of a line, which backslashes continue. An unclosed quote ends with its line: it is prose in
# compiled-out code.
_LINE = r"(?:\\\r?\n|[^\n])*"
_QUOTED = r"""(?:"(?:\\\r\n|\\.|[^"\n\\])*"?|'(?:\\\r\n|\\.|[^'\n\\])*'?)"""
_BLOCK = r"/\*.*?(?:\*/|\Z)"
_LINE_COMMENT, _QUOTED_TEXT = re.compile("//" + _LINE), re.compile(_QUOTED, re.S)
_WORD = r"\d(?:[eEpP][+-]|'(?=\w)|[\w.])*|[A-Za-z_]\w*"
_DIRECTIVE = re.compile(rf"(?:{_BLOCK}|//{_LINE}|{_WORD}|{_QUOTED}|\\\r?\n|[^\n])*", re.S)
_COMMENT = re.compile(rf"({_QUOTED})|{_BLOCK}|//.*", re.S)
_SPACES = " \t\r\n\f\v"


class Token(NamedTuple):
    kind: str
    text: str
    start: int  # in the source
    line: int  # from 1


def tokens(source: str) -> list[Token]:
    """The tokens, without comments. What ends in the middle (a comment, a string) ends with the source."""
    result: list[Token] = []
    add, made = result.append, tuple.__new__  # fast locals: this loop is much of the time from a source to its first launch
    at, line, fresh, size = 0, 1, True, len(source)  # fresh: nothing but spaces since the line's begin
    while at < size:
        for found in _COMMON.finditer(source, at):
            i = found.lastindex
            if i is None:
                at = found.end()
                break
            start, at = found.span(i)
            if i != _BREAKS:
                add(made(Token, (_KINDS[i], source[start:at], start, line)))
                fresh = False
            else:
                line += source.count("\n", start, at)
                fresh = True
        if at < size:
            at, line, fresh = _special(source, at, line, fresh, result)
    return result


def _special(source: str, at: int, line: int, fresh: bool, result: list[Token]) -> tuple[int, int, bool]:
    """What `_COMMON` does not know: a comment, a directive, a string, a joined line. Where it ends, the line there and whether nothing
    but spaces is before it."""
    c = source[at]
    end, kind = at + 1, ""
    if c == "/" and source.startswith("//", at):
        end = _LINE_COMMENT.match(source, at).end()  # type: ignore[union-attr]
    elif c == "/" and source.startswith("/*", at):
        end = _after(source, "*/", at + 2)
    elif c == "\\" and source.startswith(("\\\n", "\\\r\n"), at):
        end = source.index("\n", at) + 1
    elif c == "#" and fresh:
        kind, end = DIRECTIVE, _DIRECTIVE.match(source, at).end()  # type: ignore[union-attr]
    elif (end := _string_end(source, at)) > at:
        kind = STRING
    else:
        kind, end = PUNCTUATION, at + 1
    if kind:
        result.append(Token(kind, source[at:end], at, line))
    return end, line + source.count("\n", at, end), fresh and not kind


def _after(source: str, text: str, at: int) -> int:
    found = source.find(text, at)
    return len(source) if found < 0 else found + len(text)


def _string_end(source: str, at: int) -> int:
    """The end of the string or character that begins there; `at` where none does."""
    found = _STRING.match(source, at)
    if found is None:
        return at
    if found[2]:
        mark = _RAW.match(source, found.end())
        if mark is not None:
            return _after(source, f'){mark[0]}"', mark.end())
    quoted = _QUOTED_TEXT.match(source, found.end() - 1)
    return quoted.end() if quoted is not None else at


def without_comments(text: str) -> str:
    """A directive's text with a space for each comment."""
    return _COMMENT.sub(lambda found: found[1] or " ", text)


def directive(token: Token) -> tuple[str, str]:
    """A directive's word and the rest of it without comments, `define` and `N 3`."""
    text = without_comments(token.text.replace("\\\r\n", "").replace("\\\n", "")).lstrip(_SPACES)[1:].lstrip(_SPACES)
    end = _NAME.match(text).end()  # type: ignore[union-attr]
    return text[:end], text[end:].strip(_SPACES)


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
