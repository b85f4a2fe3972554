"""tests/vectors/expressions.json: expressions over the arguments of a launch and their values, for the daemon and the interpreter.

`n` is 5, `flag` true, `f` a float, `p` a tensor of shape (6, 7), `gone` a null pointer, and there are 4 multiprocessors.
"""

from __future__ import annotations

import json
from pathlib import Path

N = 5
SHAPE = (6, 7)
NAMES = {"n": N, "flag": True, "f": 0.5, "p": SHAPE, "gone": None}
ROWS = json.loads((Path(__file__).resolve().parents[1] / "vectors/expressions.json").read_text(encoding="utf-8"))
# None: it is an error, when it is declared or when it is evaluated.
EXPRESSIONS: dict[str, int | None] = {row["text"]: int(row["value"]) if "value" in row else None for row in ROWS}
