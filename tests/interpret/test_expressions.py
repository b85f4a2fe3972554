"""Expressions mean in the interpreter what they mean to the daemon, whose code evaluates them; of symbolic values, too."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import pytest
from kops.interpret import InterpretError
from kops.interpret._expressions import evaluate
from support.expressions import EXPRESSIONS, NAMES


class Symbol:
    """An integer that is none of Python's, as torch's are."""

    def __init__(self, value: Any) -> None:
        self.value = int(value)

    def __index__(self) -> int:
        return self.value

    def __neg__(self) -> Symbol:
        return Symbol(-self.value)

    def __lt__(self, other: Any) -> bool:
        return self.value < int(other)

    def __gt__(self, other: Any) -> bool:
        return self.value > int(other)


def _operator(name: str) -> None:
    apply = getattr(operator, name)
    setattr(Symbol, f"__{name}__", lambda a, b: Symbol(apply(int(a), int(b))))
    setattr(Symbol, f"__r{name}__", lambda a, b: Symbol(apply(int(b), int(a))))


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    _operator(_name)


def symbolic(value: Any) -> Any:
    return tuple(map(Symbol, value)) if isinstance(value, tuple) else Symbol(value) if isinstance(value, int) else value


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_expression(text: str) -> None:
    wanted = EXPRESSIONS[text]
    symbols = {name: symbolic(value) for name, value in NAMES.items()}
    if wanted is not None:
        assert evaluate(text, NAMES, "grid[0]") == wanted
        assert int(evaluate(text, symbols, "grid[0]", (int, Symbol))) == wanted
    else:
        with pytest.raises(InterpretError, match="^grid"):
            evaluate(text, NAMES, "grid[0]")


@pytest.mark.parametrize(
    "text, names, why",
    [
        ("n + 1", {"n": 2**63}, "`n \\+ 1`: n does not fit 64 bits"),
        ("m", {"n": 2**63, "m": 1}, None),
        ("x", {f"n{i}": i for i in range(100)}, "unknown name; there are n0, n1, .*, multiprocessors"),
        ("n99 - n7", {f"n{i}": i for i in range(100)}, None),
        ("+".join(f"n{i}" for i in range(10, 50)), {f"n{i}": i for i in range(100)}, "at most 32 names"),
        ("\ud800", {}, "byte 0xed"),
        ("p.numel", {"p": (2**40, 2**40)}, "p does not fit 64 bits"),
        ("m", {"p": (2**40, 2**40), "q": (2**70,), "m": 1}, None),
        ("n * n", {"n": 2**62, "s": Symbol(1)}, "does not fit 64 bits"),
        ("4 / s", {"s": Symbol(0)}, "divides by zero"),
        ("p.numel + s", {"p": None, "s": Symbol(1)}, "null pointer"),
        ("p.rank", {"p": (1,) * 9}, "p is no integer"),
    ],
)
def test_names(text: str, names: dict[str, Any], why: str | None) -> None:
    if why is None:
        evaluate(text, names, "grid", (int, Symbol))
    else:
        with pytest.raises(InterpretError, match=why):
            evaluate(text, names, "grid", (int, Symbol))


NUMBERS = [-(2**63), 1 - 2**63, -(2**32), -256, -7, -3, -2, -1, 0, 1, 2, 3, 7, 255, 65536, 2**31, 2**62, 2**62 + 1, 2**63 - 1]
POWERS = [2**k for k in range(63)]
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "{} + {}": operator.add, "{} - {}": operator.sub, "{} * {}": operator.mul, "{} / {}": operator.floordiv,
    "{} // {}": operator.floordiv, "{} % {}": operator.mod, "min({}, {})": min, "max({}, {})": max,
    "ceil_div({}, {})": lambda a, b: -(-a // b), "min(-({}), {})": lambda a, b: min(-a, b) if -a < 2**63 else -a,
    "max(next_pow2({}), {})": lambda a, b: max(b, next(x for x in POWERS if x >= a)) if a <= 2**62 else 2**63,
}  # fmt: skip


@pytest.mark.parametrize("text", OPERATIONS)
def test_arithmetic(text: str) -> None:
    """Each operation takes the numbers at the ends of ranges, as arguments and as text."""
    for a, b in itertools.product(NUMBERS, NUMBERS):
        try:
            wanted = OPERATIONS[text](a, b)
        except ZeroDivisionError:
            wanted = 2**63
        for written in itertools.product({"n", str(a) if a > 0 else "n"}, {"m", str(b) if b > 0 else "m"}):
            if -(2**63) <= wanted < 2**63:
                assert evaluate(text.format(*written), {"n": a, "m": b}, "grid") == wanted, (written, a, b)
            else:
                with pytest.raises(InterpretError):
                    evaluate(text.format(*written), {"n": a, "m": b}, "grid")
