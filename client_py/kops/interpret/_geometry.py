"""Grid, block, cluster and shared memory: numbers, or expressions over the arguments as the daemon knows them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ._errors import InterpretError

__all__ = ["dimensions", "evaluate"]

MAX_CHARACTERS, MAX_OPERATIONS = 256, 64
MULTIPROCESSORS = 4  # of the machine that the interpreter is, for kernels that spread over what there is
_TOKEN = re.compile(r"\s*(?:(0[xX][0-9a-fA-F]+|\d+)|([A-Za-z_]\w*)|(//|.))")
_MAX_BLOCK, _MAX_GRID = (1024, 1024, 64), (2**31 - 1, 65535, 65535)


def _next_pow2(value: int) -> int:
    return 1 << (value - 1).bit_length() if value > 1 else 1


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


_FUNCTIONS: dict[str, tuple[int, Callable[..., int]]] = {
    "ceil_div": (2, _ceil_div),
    "min": (0, lambda *values: min(values)),
    "max": (0, lambda *values: max(values)),
    "next_pow2": (1, _next_pow2),
}


class _Expression:
    """A parser that evaluates as it goes. `names` has integers and shapes (tuples)."""

    def __init__(self, text: str, names: Mapping[str, Any], what: str) -> None:
        self.text, self.names, self.what = text, names, what
        if len(text) > MAX_CHARACTERS:
            raise self.error(f"is longer than {MAX_CHARACTERS} characters")
        self.tokens = [next(t for t in match if t) for match in _TOKEN.findall(text.rstrip())]
        self.at = 0
        self.operations = 0

    def error(self, why: str) -> InterpretError:
        return InterpretError(f"{self.what}: {self.text!r} {why}", "launch")

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        token = self.peek()
        if wanted and token not in wanted:
            raise self.error(f"has {token!r} where {' or '.join(map(repr, wanted))} is expected" if token else "ends too early")
        self.at += 1
        return token

    def check(self, value: int) -> int:
        self.operations += 1
        if self.operations > MAX_OPERATIONS:
            raise self.error(f"has more than {MAX_OPERATIONS} operations")
        if not -(2**63) <= value < 2**63:
            raise self.error("exceeds 64 bits")
        return value

    def whole(self) -> int:
        value = self.sum()
        if self.at < len(self.tokens):
            raise self.error(f"has {self.peek()!r} behind its end")
        return value

    def sum(self) -> int:
        value = self.product()
        while self.peek() in ("+", "-"):
            value = self.check(value + self.product() if self.take() == "+" else value - self.product())
        return value

    def product(self) -> int:
        value = self.unary()
        while self.peek() in ("*", "/", "//", "%"):
            operator, right = self.take(), self.unary()
            if operator == "*":
                value = self.check(value * right)
            elif not right:
                raise self.error("divides by zero")
            else:
                value = self.check(value % right if operator == "%" else value // right)
        return value

    def unary(self) -> int:
        if self.peek() == "-":
            self.take()
            return self.check(-self.unary())
        return self.primary()

    def primary(self) -> int:
        token = self.take()
        if token == "(":
            value = self.sum()
            self.take(")")
            return value
        if token[:1].isdigit():
            return self.check(self.number(token))
        if token in _FUNCTIONS and self.peek() == "(":
            return self.call(token)
        if not re.match(r"[A-Za-z_]", token):
            raise self.error(f"has an unexpected {token!r}" if token else "ends too early")
        if token not in self.names and token == "multiprocessors":
            return MULTIPROCESSORS
        if token not in self.names:
            raise self.error(f"names {token!r}, which is no parameter")
        value = self.names[token]
        if isinstance(value, tuple):
            return self.of_shape(token, value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"uses {token!r}, which is no integer")
        return self.check(value)

    def number(self, token: str) -> int:
        if not token[:1].isdigit() or (token[0] == "0" and token.isdigit() and len(token) > 1):
            raise self.error(f"has {token!r} where a number is expected")
        return int(token, 16 if token[:2] in ("0x", "0X") else 10)

    def call(self, name: str) -> int:
        count, function = _FUNCTIONS[name]
        self.take("(")
        values = [self.sum()]
        while self.take(",", ")") == ",":
            values.append(self.sum())
        if count and len(values) != count:
            raise self.error(f"gives {name} {len(values)} arguments, it takes {count}")
        if name == "ceil_div" and not values[1]:
            raise self.error("divides by zero")
        return self.check(function(*values))

    def of_shape(self, name: str, shape: tuple[int, ...]) -> int:
        self.take(".")
        field = self.take("numel", "rank", "shape", "size")
        if field == "numel":
            if self.peek() == "(":
                self.take("(")
                self.take(")")
            total = 1
            for length in shape:
                total *= length
            return self.check(total)
        if field == "rank":
            if self.peek() == "(":
                self.take("(")
                self.take(")")
            return len(shape)
        opening = self.take("[" if field == "shape" else "(")
        sign = -1 if self.peek() == "-" else 1
        if sign < 0:
            self.take()
        axis = sign * self.number(self.take())
        self.take("]" if opening == "[" else ")")
        if not -len(shape) <= axis < len(shape):
            raise self.error(f"asks for dimension {axis} of {name}, which has {len(shape)}")
        return shape[axis]


def evaluate(value: int | str, names: Mapping[str, Any], what: str) -> int:
    """An integer, or what an expression gives."""
    if isinstance(value, str):
        return _Expression(value, names, what).whole()
    try:
        return value.__index__()
    except AttributeError:
        raise InterpretError(f"{what}: {value!r} is neither an integer nor an expression", "launch") from None


def dimensions(value: Any, names: Mapping[str, Any], what: str, lowest: int = 1) -> tuple[int, int, int]:
    """One to three dimensions of a grid or block, checked against what a device allows."""
    items = list(value) if isinstance(value, (tuple, list)) else [value]
    if not 1 <= len(items) <= 3:
        raise InterpretError(f"{what} has {len(items)} dimensions; 1 to 3 are possible", "launch")
    result = [evaluate(item, names, f"{what}[{i}]") for i, item in enumerate(items)]
    limits = _MAX_BLOCK if what == "block" else _MAX_GRID
    for i, length in enumerate(result):
        if not lowest <= length <= limits[i]:
            raise InterpretError(f"{what}[{i}] is {length}; {lowest} to {limits[i]} are possible", "launch")
    x, y, z = (result + [1, 1])[:3]
    if what == "block" and x * y * z > _MAX_BLOCK[0]:
        raise InterpretError(f"a block of {x} * {y} * {z} threads; at most {_MAX_BLOCK[0]} are possible", "launch")
    return x, y, z
