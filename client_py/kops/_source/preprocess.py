"""Which lines of a source its conditionals choose, as far as that can be told without the compiler's headers.

`#if` and its kin are followed with the macros of the options, of the source and of the files that it includes by name.
Where a condition depends on what only the compiler knows (`__CUDA_ARCH__`, …) both branches are taken, and macros that such a
branch defines are uncertain. Macros that stand for a few words (`#define floatX float`) are replaced by them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from .options import macros
from .tokens import DIRECTIVE, NAME, NUMBER, Token, directive, tokens

__all__ = ["Preprocessor"]

MAX_WORDS = 8  # of a macro that is replaced
MAX_DEPTH = 32  # of includes and of macros in macros
_SIMPLE = re.compile(r"(?:[A-Za-z_$][\w$]*|::|\*|&|\d+|\s+)*")
# What the compiler or the toolkit's headers may define.
_FOREIGN = re.compile(r"__\w+|(CUDA|CUDART|NVRTC|CUB|CCCL|THRUST|NV|CU)_?[A-Z]\w*|\w+_(MAX|MIN)|_\w+|NDEBUG")
_GUARD = re.compile(r"\w+_(H|HH|HPP|CUH|INCLUDED|GUARD)_*")  # of an included file, which is the source's own
_TOKENS = re.compile(r"\s*(defined\b|[A-Za-z_$][\w$]*|0[xX][0-9a-fA-F]+|\d+|&&|\|\||[<>=!]=|<<|>>|[-+*/%<>!()~?:&|^,]|\S)")
_LEVELS = (("||",), ("&&",), ("==", "!="), ("<", ">", "<=", ">="), ("+", "-"), ("*", "/", "%"))


class _Unknown(Exception):
    """What a condition says depends on what is not known here."""


class _Condition:
    """A condition with integers; raises _Unknown where it needs what is not known."""

    def __init__(self, text: str, macros: Mapping[str, str | None], depth: int = 0) -> None:
        self.items, self.macros, self.depth, self.at = _TOKENS.findall(text), macros, depth, 0

    def value(self) -> int:
        result = self.level(0)
        if self.at < len(self.items) or self.depth > MAX_DEPTH:
            raise _Unknown
        return result

    def take(self) -> str:
        self.at += 1
        return self.items[self.at - 1] if self.at <= len(self.items) else ""

    def peek(self) -> str:
        return self.items[self.at] if self.at < len(self.items) else ""

    def level(self, n: int) -> int:
        if n == len(_LEVELS):
            return self.unary()
        left = self.operand(n)
        while self.peek() in _LEVELS[n]:
            operator = self.take()
            right = self.operand(n)
            if operator in ("||", "&&"):
                left = self.logical(operator, left, right)
            elif left is None or right is None:
                raise _Unknown
            else:
                left = _apply(operator, left, right)
        if left is None:
            raise _Unknown
        return left

    def operand(self, n: int) -> int | None:
        """One side of an operator; None, and what belongs to it skipped, where it is not known."""
        if _LEVELS[n][0] not in ("||", "&&"):
            return self.level(n + 1)
        start = self.at
        try:
            return self.level(n + 1)
        except _Unknown:
            self.at, depth = start, 0
            while self.at < len(self.items) and (depth or self.peek() not in ("||", "&&", ")", "?", ":")):
                depth += {"(": 1, ")": -1}.get(self.take(), 0)
            return None

    @staticmethod
    def logical(operator: str, left: int | None, right: int | None) -> int | None:
        """`false && unknown` is false, `true || unknown` is true."""
        decides = operator == "||"
        if any(side is not None and bool(side) == decides for side in (left, right)):
            return int(decides)
        return None if left is None or right is None else int(not decides)

    def unary(self) -> int:
        token = self.take()
        if token == "!":
            return int(not self.unary())
        if token == "-":
            return -self.unary()
        if token == "(":
            value = self.level(0)
            if self.take() != ")":
                raise _Unknown
            return value
        if token == "defined":
            closing = self.peek() == "("
            name = self.items[self.at + 1] if closing and self.at + 1 < len(self.items) else self.peek()
            self.at += 3 if closing else 1
            return int(_is_defined(name, self.macros))
        if token[:1].isdigit():
            suffix = self.peek()
            if suffix and re.fullmatch(r"[uUlL]+", suffix):
                self.take()
            return int(token, 0) if token == "0" or not token.startswith("0") or token[1:2] in ("x", "X") else int(token, 8)
        if token in ("true", "false"):
            return int(token == "true")
        if re.match(r"[A-Za-z_$]", token) and self.peek() != "(":
            if not _is_defined(token, self.macros):
                return 0
            return _Condition(self.macros[token] or "?", self.macros, self.depth + 1).value() if self.depth < MAX_DEPTH else 0
        raise _Unknown


def _apply(operator: str, left: int, right: int) -> int:
    if operator in ("/", "%"):
        if not right:
            raise _Unknown
        quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
        return quotient if operator == "/" else left - quotient * right
    return int({
        "==": left == right, "!=": left != right, "<": left < right, ">": left > right, "<=": left <= right, ">=": left >= right,
        "+": left + right, "-": left - right, "*": left * right,
    }[operator])  # fmt: skip


def _is_defined(name: str, macros: Mapping[str, str | None]) -> bool:
    if name in macros:
        if macros[name] is None:
            raise _Unknown
        return True
    if _FOREIGN.fullmatch(name) and not _GUARD.fullmatch(name):
        raise _Unknown
    return False


class _Branch:
    """An `#if` that is open."""

    def __init__(self, outer: bool, certain: bool) -> None:
        self.outer, self.certain_outside = outer, certain
        self.taken: bool | None = False  # one of its branches was chosen; None: perhaps
        self.active, self.certain = outer, certain

    def begin(self, condition: bool | None) -> None:
        """A branch begins with this condition; None: it is not known."""
        self.active = self.outer and self.taken is not True and condition is not False
        self.certain = self.certain_outside and self.taken is False and condition is True
        if condition is True:
            self.taken = True
        elif condition is None and self.taken is False:
            self.taken = None


class Preprocessor:
    """`macros` is what is defined, by name: its text; None where that is uncertain or takes arguments."""

    def __init__(self, files: Mapping[str, str], options: Iterable[str]) -> None:
        self.files = files
        self.macros: dict[str, str | None] = {}
        self._open: set[str] = set()
        self._once: set[str] = set()
        for macro in macros(options):
            if macro.value is not None:
                self.macros[macro.name] = None if macro.parameters else macro.value

    def run(self, source: str, main: bool = True) -> list[tuple[Token, bool]]:
        """The tokens that remain, without directives, and whether each is the source's own (not a file's)."""
        found = tokens(source)
        if not self.macros and "#" not in source:
            return [(token, main) for token in found]
        result: list[tuple[Token, bool]] = []
        branches: list[_Branch] = []
        for token in found:
            here = branches[-1] if branches else None
            active = here is None or here.active
            if token.kind == DIRECTIVE:
                self._directive(token, branches, active, here is None or here.certain, result)
            elif active and token.kind == NAME and token.text in self.macros:
                result += [(replaced, main) for replaced in self._replaced(token)]
            elif active:
                result.append((token, main))
        return result

    def _directive(
        self, token: Token, branches: list[_Branch], active: bool, certain: bool, result: list[tuple[Token, bool]]
    ) -> None:
        word, rest = directive(token)
        if word in ("if", "ifdef", "ifndef"):
            branches.append(_Branch(active, certain))
            branches[-1].begin(self._holds(word, rest) if active else False)
        elif word.startswith(("elif", "else")) and branches:
            branch = branches[-1]
            known = True if word == "else" else self._holds({"elifdef": "ifdef", "elifndef": "ifndef"}.get(word, "if"), rest)
            branch.begin(known if branch.outer else False)
        elif word == "endif" and branches:
            branches.pop()
        elif not active:
            return
        elif word == "define":
            self._define(rest, certain)
        elif word == "undef":
            if certain:
                self.macros.pop(rest, None)
            elif rest in self.macros:
                self.macros[rest] = None
        elif word == "include":
            self._include(rest, result)

    def _holds(self, word: str, text: str) -> bool | None:
        try:
            if word == "if":
                return bool(_Condition(text, self.macros).value())
            return _is_defined(text.split()[0] if text else "", self.macros) == (word == "ifdef")
        except (_Unknown, ValueError):
            return None

    def _define(self, text: str, certain: bool) -> None:
        match = re.match(r"([A-Za-z_$][\w$]*)(\(?)\s*(.*)", text, re.S)
        if match is None:
            return
        name, arguments, value = match.groups()
        same = name in self.macros and self.macros[name] == value
        if arguments or not (certain or same):
            self.macros[name] = None
        else:
            self.macros[name] = value.strip()

    def _include(self, text: str, result: list[tuple[Token, bool]]) -> None:
        name = text[1:].partition('"' if text[:1] == '"' else ">")[0]
        if name not in self.files or name in self._open or name in self._once or len(self._open) > MAX_DEPTH:
            return
        if re.search(r"^\s*#\s*pragma\s+once\b", self.files[name], re.M):
            self._once.add(name)
        self._open.add(name)
        result += self.run(self.files[name], False)
        self._open.discard(name)

    def replaces(self, name: str) -> bool:
        """Whether a macro is replaced by the words that it stands for."""
        token = Token(NAME, name, 0, 1)
        return self._replaced(token) != [token]

    def _replaced(self, token: Token, depth: int = 0) -> list[Token]:
        """The words that a macro stands for, at its place; itself where it is none that is replaced."""
        text = self.macros.get(token.text)
        if text is None or depth > MAX_DEPTH or not _SIMPLE.fullmatch(text):
            return [token]
        words = tokens(text)
        if len(words) > MAX_WORDS or any(word.text == token.text for word in words):
            return [token]
        result: list[Token] = []
        for word in words:
            made = Token(word.kind, word.text, token.start, token.line)
            known = word.kind == NAME and word.text in self.macros
            result += self._replaced(made, depth + 1) if known else [made]
        return result if all(word.kind in (NAME, NUMBER) or word.text in ("::", "*", "&") for word in result) else [token]
