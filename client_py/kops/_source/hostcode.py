"""Takes host code out of CUDA sources, as the daemon does for its compiler (daemon/compile/hostcode.c). Both run
tests/vectors/hostcode.json.

A .cu file of nvcc's kind holds kernels together with functions, main() and variables of the host. What is marked for the
device stays, and so do constants, types and directives; the rest becomes blanks, so that lines keep their numbers. It
works on tokens: no macro is expanded and no name resolved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .._base.declarations import KERNEL_LIMITS, KERNEL_WORDS
from .tokens import DIRECTIVE, NAME, STRING, Token, directive, tokens

__all__ = ["blank", "host_parts"]

SCOPES_MAX, CONDITIONS_MAX, WORDS_MAX = (KERNEL_LIMITS[f"hostcode_{name}"] for name in ("scopes", "conditions", "words"))
_MARKS, _ATTRIBUTES, _TYPES, _KEPT, _EXPRESSIONS, _ACCESS = (
    frozenset(KERNEL_WORDS[name]) for name in ("device_marks", "attributes", "types", "kept", "constant_expressions", "access")
)
_DOES = {"ifdef": "if", "ifndef": "if", "elif": "else", "elifdef": "else", "elifndef": "else"}  # effect of a directive
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_NAMESPACE, _CLASS = "namespace", "class"
# A macro of a header that is not at hand: C10_HOST_DEVICE, CUTLASS_DEVICE, …
_LOOKS_LIKE_MARK = re.compile(r"[^a-z]*DEVICE[^a-z]*")


def _word(token: Token) -> str:
    """What a directive does: `if` for every beginning of a conditional, `else` for every further branch."""
    word = directive(token)[0] if token.kind == DIRECTIVE else ""
    return _DOES.get(word, word)


@dataclass
class _Head:
    """What a declaration says before its body or semicolon."""

    name: str = ""
    parentheses: bool = False
    assigned: bool = False
    colon: bool = False
    is_namespace: bool = False
    is_type: bool = False
    is_enum: bool = False
    is_kept: bool = False
    device: bool = False
    host: bool = False
    constant: bool = False
    constant_expression: bool = False


def _remember(words: set[str], word: str) -> None:
    if len(words) < WORDS_MAX:
        words.add(word)


class _Scan:
    """One text. `marks` are macros that mark device code, `declared` functions that a declaration marked, of all texts."""

    def __init__(self, text: str, found: list[Token], marks: set[str], declared: set[str]) -> None:
        self.text, self.tokens, self.marks, self.declared = text, found, marks, declared
        self.words = [_word(token) for token in found]
        self.blanks: list[tuple[int, int]] = []  # blanks between tokens
        self.start = 0  # the token that the statement begins with
        self.tail = False  # behind a class or enum, before its semicolon
        self.scopes: list[str] = []
        self.conditions: list[int] = []

    def at(self, i: int) -> str:
        """The text of a name or mark, nothing for what is none."""
        token = self.tokens[i] if 0 <= i < len(self.tokens) else None
        return token.text if token and token.kind not in (DIRECTIVE, STRING) else ""

    def skip_branch(self, i: int) -> int:
        """From an #else whose conditional began before to its #endif."""
        depth = 0
        while i < len(self.tokens):
            if self.words[i] == "if":
                depth += 1
            elif self.words[i] == "endif":
                if not depth:
                    break
                depth -= 1
            i += 1
        return i

    def skip_group(self, i: int) -> int:
        """From an opening bracket to behind its partner. Of a conditional's branches only one counts."""
        opening = self.at(i)
        closing, depth = _CLOSING[opening], 0
        saved: list[int] = []
        while i < len(self.tokens):
            word, text = self.words[i], self.at(i)
            if word == "if" and len(saved) < CONDITIONS_MAX:
                saved.append(depth)
            elif word == "else" and saved:
                depth = saved[-1]
            elif word == "else":
                i = self.skip_branch(i)
            elif word == "endif" and saved:
                saved.pop()
            elif text == opening:
                depth += 1
            elif text == closing:
                depth -= 1
                if not depth:
                    return i + 1
            i += 1
        return len(self.tokens)

    def skip_angles(self, i: int, end: int) -> int:
        """From '<' to behind its '>'."""
        depth = 0
        while i < end:
            text = self.at(i)
            depth += {"<": 1, "<<<": 3, ">": -1}.get(text, 0)
            if text == ">" and not depth:
                return i + 1
            i = self.skip_group(i) if text in ("(", "{") else i + 1
        return end

    def marks_device(self, text: str) -> bool:
        return text in _MARKS or text in self.marks or bool(_LOOKS_LIKE_MARK.fullmatch(text))

    def read_name(self, i: int, end: int, head: _Head) -> int:
        """Reads a name that is in no brackets; where to go on."""
        text, following = self.at(i), self.at(i + 1)
        head.device = head.device or self.marks_device(text)
        if text == "template" and following == "<":
            return self.skip_angles(i + 1, end)
        if text in _ATTRIBUTES and following == "(":
            return self.skip_group(i + 1)
        if text == "operator" and not head.parentheses:
            head.name = text
            if following == "(" and self.at(i + 2) == ")":
                return i + 3
            return next((j for j in range(i + 1, end) if self.at(j) == "("), end)
        head.host = head.host or text == "__host__"
        head.constant = head.constant or text == "const"
        head.constant_expression = head.constant_expression or text in _EXPRESSIONS
        if head.parentheses or head.assigned:
            return i + 1
        head.is_namespace = head.is_namespace or text == "namespace"
        head.is_type = head.is_type or text in _TYPES
        head.is_enum = head.is_enum or text == "enum"
        head.is_kept = head.is_kept or text in _KEPT
        head.name = text
        return i + 1

    def head(self, end: int) -> _Head:
        head, i = _Head(), self.start
        while i < end:
            text = self.at(i)
            if self.tokens[i].kind == NAME:
                i = self.read_name(i, end, head)
            elif text in _CLOSING:
                head.parentheses = head.parentheses or (text == "(" and not head.assigned)
                i = self.skip_group(i)
            elif text in ("<", "<<<") and not head.parentheses and not head.assigned:
                i = self.skip_angles(i, end)
            else:
                head.colon = head.colon or (head.parentheses and text == ":")
                head.assigned = head.assigned or text == "="
                i += 1
        return head

    def is_for_host(self, head: _Head) -> bool:
        return not head.device and (head.host or (not head.constant_expression and head.name not in self.declared))

    @property
    def scope(self) -> str:
        return self.scopes[-1] if self.scopes else _NAMESPACE

    def enter(self, i: int, scope: str) -> int:
        if len(self.scopes) == SCOPES_MAX:
            return self.skip_group(i)
        self.scopes.append(scope)
        self.start = i + 1
        return i + 1

    def open_brace(self, i: int) -> int:
        head = self.head(i)
        before = self.tokens[i - 1] if i > self.start else None
        if self.tail or head.assigned:
            return self.skip_group(i)
        is_linkage = self.at(self.start) == "extern" and i == self.start + 2 and before is not None and before.text.endswith('"')
        if head.is_namespace or is_linkage:
            return self.enter(i, _NAMESPACE)
        if head.is_type and not (head.parentheses and before is not None and before.text == ")"):
            if not head.is_enum:
                return self.enter(i, _CLASS)
            self.tail = True
            return self.skip_group(i)
        after_name = before is not None and (before.kind == NAME or before.text == ">")
        if not head.parentheses or (head.colon and after_name):  # an initial value, of a variable or of a member
            return self.skip_group(i)
        i = self.skip_group(i)
        if self.is_for_host(head):
            self.blanks.append((self.start, i))
        self.start = i
        return i

    def end_statement(self, i: int) -> None:
        tail, self.tail = self.tail, False
        if tail or i == self.start or self.scope == _CLASS:
            return
        head = self.head(i)
        if head.device and head.parentheses and not head.assigned and head.name:
            _remember(self.declared, head.name)
        if head.is_kept or head.is_namespace or (head.is_type and not head.parentheses):
            return
        if self.tokens[self.start].kind == NAME and self.at(self.start + 1) == "(":  # a macro
            return
        if not head.parentheses and (head.constant or head.constant_expression):
            return
        if self.is_for_host(head):
            self.blanks.append((self.start, i + 1))

    def read_directive(self, i: int) -> None:
        word = self.words[i]
        if word == "if" and len(self.conditions) < CONDITIONS_MAX:
            self.conditions.append(len(self.scopes))
        elif word == "else" and self.conditions:
            del self.scopes[self.conditions[-1] :]
        elif word == "endif" and self.conditions:
            self.conditions.pop()
        if self.start == i:
            self.start = i + 1

    def run(self) -> None:
        i = 0
        while i < len(self.tokens):
            text = self.at(i)
            if self.tokens[i].kind == DIRECTIVE:
                self.read_directive(i)
                i += 1
            elif text in ("(", "["):
                i = self.skip_group(i)
            elif text == "{":
                i = self.open_brace(i)
            elif text == "}":
                self.tail = self.scope == _CLASS
                if self.scopes:
                    self.scopes.pop()
                i += 1
                self.start = i
            elif text == ";":
                self.end_statement(i)
                i += 1
                self.start = i
            else:
                i += 1
                if text == ":" and i == self.start + 2 and self.at(i - 2) in _ACCESS:
                    self.start = i

    def marks_of_lambdas(self) -> list[tuple[int, int]]:
        """A lambda of device code needs no mark, and only nvcc knows marks of lambdas: [=] __device__ (int i) { … }"""
        result = []
        for i in range(len(self.tokens)):
            end = i + 1
            while self.at(i) == "]" and self.at(end) in ("__device__", "__host__"):
                end += 1
            if end > i + 1 and self.at(end) in ("(", "{"):
                result.append((i + 1, end))
        return result

    def result(self) -> str:
        """The text; directives stay, they may matter further on."""
        parts, done, behind = [], 0, 0
        for start, end in sorted(self.blanks + self.marks_of_lambdas()):
            if end <= behind:
                continue
            behind = end
            for token in self.tokens[start:end]:
                if token.kind == DIRECTIVE and directive(token)[0] != "pragma":
                    parts += [re.sub(r"[^\r\n]", " ", self.text[done : token.start]), token.text]
                    done = token.start + len(token.text)
                elif token is self.tokens[start]:
                    parts.append(self.text[done : token.start])
                    done = token.start
            last = self.tokens[end - 1]
            stop = last.start + len(last.text)
            parts.append(re.sub(r"[^\r\n]", " ", self.text[done:stop]))
            done = max(done, stop)
        parts.append(self.text[done:])
        return "".join(parts)


def _scans(texts: Sequence[str]) -> list[_Scan]:
    """The texts of one program, looked through; macros that one defines are known in the others."""
    marks: set[str] = set()
    declared: set[str] = set()
    cut = [tokens(text) for text in texts]
    for text, found in reversed(list(zip(texts, cut))):  # an included text comes after the text that includes it
        scan = _Scan(text, found, marks, declared)
        for token, word in zip(found, scan.words):
            if word == "define":
                name, *words = tokens(directive(token)[1]) or [token]
                if any(part.kind == NAME and scan.marks_device(part.text) for part in words):
                    _remember(marks, name.text)
        scan.run()
    result = []
    for text, found in zip(texts, cut):
        scan = _Scan(text, found, marks, declared)
        scan.run()
        result.append(scan)
    return result


def blank(texts: Sequence[str]) -> list[str]:
    """The texts of one program without host code."""
    texts = [text.encode("utf-8", "surrogatepass").decode("latin-1") for text in texts]  # a blank for each byte
    return [scan.result().encode("latin-1").decode("utf-8", "surrogatepass") for scan in _scans(texts)]


def host_parts(text: str) -> list[list[Token]]:
    """The functions, declarations and variables of the host in a text, each as its tokens."""
    (scan,) = _scans([text])
    return [scan.tokens[start:end] for start, end in scan.blanks]
