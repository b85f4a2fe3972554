"""Integer expressions over the arguments of a launch, as the daemon evaluates them (daemon/core/expr.h has the grammar), and the grids,
blocks and clusters that are made of them.

Like there, an expression becomes a postfix program whose constants are folded, since the limit of operations counts that
program's. Both run tests/vectors/expressions.json.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from .._companions import KERNEL_LIMITS, MAX_RANK
from ._errors import InterpretError

MAX_BYTES, MAX_OPERATIONS, MAX_DEPTH = (KERNEL_LIMITS[f"expression_{name}"] for name in ("text", "operations", "depth"))
MULTIPROCESSORS = 4  # the interpreter's as a device, for kernels that spread over all of them
_TOKEN = re.compile(r"[ \t\r\n]*(?:([0-9][0-9A-Za-z_]*)|([A-Za-z_][0-9A-Za-z_]*)|(//|[^ \t\r\n])|$)")
_NUMBER = re.compile(r"0[xX][0-9A-Fa-f]+|[0-9]+")


def _next_pow2(value: int, _: int) -> int:
    return 1 << (operator.index(value) - 1).bit_length() if value > 1 else 1


_APPLY: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "ceil_div": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
    "negate": lambda a, _: -a,
    "next_pow2": _next_pow2,
}
_UNARY = ("negate", "next_pow2")
_DIVISIONS = ("/", "%", "ceil_div")
_FUNCTIONS = {"ceil_div": 2, "min": 0, "max": 0, "next_pow2": 1}  # arguments; 0: any number


class _Parser:
    """Recursive descent, into `program`: integers and functions that give one, and names of operations."""

    def __init__(self, text: str, names: Mapping[str, Any], what: str, integers: tuple[type, ...]) -> None:
        self.text, self.names, self.what, self.integers = text, names, what, integers
        if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
            raise self.error(f"is longer than {MAX_BYTES} characters")
        self.tokens = [next(filter(None, match.groups())) for match in _TOKEN.finditer(text) if any(match.groups())]
        self.at = self.depth = 0
        self.program: list[int | str | Callable[[], int]] = []

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

    def push(self, operation: int | str | Callable[[], int]) -> None:
        if len(self.program) == MAX_OPERATIONS:
            raise self.error(f"has more than {MAX_OPERATIONS} operations")
        self.program.append(operation)

    def apply(self, operation: str, a: int, b: int) -> int:
        if operation in _DIVISIONS and not b:
            raise self.error("divides by zero")
        value = _APPLY[operation](a, b)
        if not -(2**63) <= value < 2**63:
            raise self.error("exceeds 64 bits")
        return value

    def operate(self, operation: str) -> None:
        """Adds an operation, or does it at once where its operands are constants."""
        operands = self.program[-1:] if operation in _UNARY else self.program[-2:]
        if operation in _DIVISIONS and operands[1] == 0:
            raise self.error("divides by zero")
        numbers = [operand for operand in operands if isinstance(operand, int)]
        if len(numbers) < len(operands):
            self.push(operation)
        else:
            self.program[-len(operands) :] = [self.apply(operation, numbers[0], numbers[-1])]

    def whole(self) -> int:
        self.sum()
        if self.at < len(self.tokens):
            raise self.error(f"has {self.peek()!r} behind its end")
        stack: list[int] = []
        for operation in self.program:
            if isinstance(operation, int):
                stack.append(operation)
            elif callable(operation):
                stack.append(operation())
            else:
                b = 0 if operation in _UNARY else stack.pop()
                stack.append(self.apply(operation, stack.pop(), b))
        return stack[0]

    def sum(self) -> None:
        self.product()
        while self.peek() in ("+", "-"):
            operator = self.take()
            self.product()
            self.operate(operator)

    def product(self) -> None:
        self.unary()
        while self.peek() in ("*", "/", "//", "%"):
            operator = self.take()[:1]
            self.unary()
            self.operate(operator)

    def unary(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"is nested deeper than {MAX_DEPTH}")
        token = self.take()
        if token == "-":
            self.unary()
            self.operate("negate")
        elif token == "(":
            self.sum()
            self.take(")")
        elif token[:1].isdigit():
            self.push(self.number(token))
        elif re.match(r"[A-Za-z_]", token):
            self.name(token)
        else:
            raise self.error(f"has an unexpected {token!r}" if token else "ends too early")
        self.depth -= 1

    def number(self, token: str) -> int:
        if not _NUMBER.fullmatch(token):
            raise self.error(f"has {token!r} where a number is expected")
        value = int(token, 16 if token[:2] in ("0x", "0X") else 10)
        if value >= 2**63:
            raise self.error(f"has {token}, which exceeds 64 bits")
        return value

    def name(self, token: str) -> None:
        if token in _FUNCTIONS and self.peek() == "(":
            self.call(token)
        elif token not in self.names and token == "multiprocessors" and self.peek() != "(":
            self.push(lambda: MULTIPROCESSORS)
        elif token not in self.names:
            raise self.error(f"names {token!r}, which is no parameter")
        elif isinstance(value := self.names[token], tuple):
            self.property(token, value)
        elif not isinstance(value, self.integers):
            raise self.error(f"uses {token!r}, which is {'a null pointer' if value is None else 'no integer'} here")
        else:
            number: Any = int(value) if isinstance(value, int) else value
            if number >= 2**63:
                raise self.error(f"uses {token!r}, which exceeds 64 bits")
            self.push(lambda: number)

    def call(self, name: str) -> None:
        count, given = _FUNCTIONS[name], 1
        self.take("(")
        self.sum()
        while self.peek() == ",":
            self.take()
            self.sum()
            given += 1
            if count and given > count:
                break
            self.operate(name)
        if count and given != count:
            raise self.error(f"gives {name} {given} arguments, it takes {count}")
        self.take(")")
        if name in _UNARY:
            self.operate(name)

    def property(self, name: str, shape: tuple[int, ...]) -> None:
        self.take(".")
        field = self.take("numel", "rank", "shape", "size")
        if field in ("shape", "size"):
            self.dimension(name, field, shape)
            return
        if self.peek() == "(":
            self.take()
            self.take(")")
        total = len(shape)
        if field == "numel":
            total = 1
            for length in shape:
                total *= length
        self.push(lambda: total)

    def dimension(self, name: str, field: str, shape: tuple[int, ...]) -> None:
        self.take("[" if field == "shape" else "(")
        sign = -1 if self.peek() == "-" else 1
        if sign < 0:
            self.take()
        axis = sign * self.number(self.take())
        self.take("]" if field == "shape" else ")")
        if not -MAX_RANK <= axis < MAX_RANK or not -len(shape) <= axis < len(shape):
            raise self.error(f"asks for dimension {axis} of {name}, which has {len(shape)}")
        length = shape[axis]
        self.push(lambda: length)


def evaluate(value: int | str, names: Mapping[str, Any], what: str, integers: tuple[type, ...] = (int,)) -> int:
    """An integer, or the value of an expression. `names` are the parameters: an integer, a shape, None for a null
    pointer, or anything else for a name that an expression cannot use. `integers`: the types of integers, which may be
    symbolic; then the value is, too."""
    if isinstance(value, str):
        return _Parser(value, names, what, integers).whole()
    try:
        return value.__index__()
    except AttributeError:
        raise InterpretError(f"{what}: {value!r} is neither an integer nor an expression", "launch") from None


# Grid, block and cluster

_LIMITS = {"block": (1024, 1024, 64), "grid": (2**31 - 1, 65535, 65535), "cluster": (16, 16, 16)}
_TOGETHER = {"block": 1024, "cluster": 16}


def dimensions(value: Any, names: Mapping[str, Any], what: str, lowest: int = 1) -> tuple[int, int, int]:
    """One to three dimensions of a grid or block, checked against what a device allows."""
    items = list(value) if isinstance(value, (tuple, list)) else [value]
    if not 1 <= len(items) <= 3:
        raise InterpretError(f"{what} has {len(items)} dimensions; 1 to 3 are possible", "launch")
    result = [evaluate(item, names, f"{what}[{i}]") for i, item in enumerate(items)]
    for i, length in enumerate(result):
        if not lowest <= length <= _LIMITS[what][i]:
            raise InterpretError(f"{what}[{i}] is {length}; {lowest} to {_LIMITS[what][i]} are possible", "launch")
    x, y, z = (result + [1, 1])[:3]
    if what in _TOGETHER and x * y * z > _TOGETHER[what]:
        raise InterpretError(f"a {what} of {x} * {y} * {z}; at most {_TOGETHER[what]} are possible", "launch")
    return x, y, z


def one_block(grid: tuple[int, int, int]) -> None:
    """Refuses what a cooperative kernel needs and is not here."""
    if grid[0] * grid[1] * grid[2] > 1:
        raise InterpretError(
            f"a cooperative kernel with a grid of {grid[0]} * {grid[1]} * {grid[2]}: blocks run one after another here, and would wait "
            "for each other for ever; interpret it with one block, or run it on a GPU",
            "launch",
        )


def cluster_of(value: Any, names: Mapping[str, Any], grid: tuple[int, int, int]) -> None:
    """Checks a cluster, which a grid is a multiple of."""
    for i, (whole, part) in enumerate(zip(grid, dimensions(value, names, "cluster"))):
        if whole % part:
            raise InterpretError(f"grid[{i}] is {whole}, which is no multiple of the cluster's {part}", "launch")
