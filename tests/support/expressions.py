"""Expressions over the arguments of a launch and what they are, for all who evaluate them: the daemon and the interpreter.

`n` is 5, `p` a tensor of shape (6, 7). None: it is an error, when it is declared or when it is evaluated.
"""

from __future__ import annotations

N = 5
SHAPE = (6, 7)
EXPRESSIONS: dict[str, int | None] = {
    "7": 7,
    "0x10 // 3": 5,
    "17 / 5": 3,
    "-17 / 5": -4,
    "17 % -5": -3,
    "-(-n // 2)": 3,
    "2 + 3 * (n - 1)": 14,
    "--n": 5,
    "ceil_div(n, 2)": 3,
    "ceil_div(-n, 2)": -2,
    "min(n, 9, 3)": 3,
    "max(n, 9)": 9,
    "next_pow2(n)": 8,
    "next_pow2(-3)": 1,
    "p.numel": 42,
    "p.numel()": 42,
    "p.rank": 2,
    "p.rank()": 2,
    "p.shape[0] * 100": 600,
    "p.shape[-1]": 7,
    "p.size(1)": 7,
    "p.shape[2]": None,
    "p.shape[n]": None,
    "p.shape": None,
    "p": None,
    "q": None,
    "n.numel": None,
    "n / 0": None,
    "n / (n - 5)": None,
    "ceil_div(n)": None,
    "next_pow2(1, 2)": None,
    "9223372036854775807 + n": None,
    "1 +": None,
    "(1": None,
    "1 2": None,
    "n n": None,
    "0x": None,
    "2 ** 3": None,
    "+ + n ^ 1": None,
}
