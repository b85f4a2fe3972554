"""tests/vectors/expressions.json: expressions over the arguments of a launch and their values, for the daemon and the interpreter.

`n` is 5, `flag` true, `f` a float, `p` a tensor of shape (6, 7), `gone` a null pointer, and there are 4 multiprocessors.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

N = 5
SHAPE = (6, 7)
NAMES = {"n": N, "flag": True, "f": 0.5, "p": SHAPE, "gone": None}
ROWS = json.loads((Path(__file__).resolve().parents[1] / "vectors/expressions.json").read_text(encoding="utf-8"))
# None: it is an error, when it is declared or when it is evaluated.
EXPRESSIONS: dict[str, int | None] = {row["text"]: int(row["value"]) if "value" in row else None for row in ROWS}
# Those of n and p alone that may be part of a longer one, with small values.
SHORT = [
    text
    for text, value in EXPRESSIONS.items()
    if len(text) < 30 and abs(value or 0) < 1000 and not re.search(r"\b(flag|f|gone|multiprocessors)\b", text)
]
