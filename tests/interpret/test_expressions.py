"""Expressions mean in the interpreter what they mean to the daemon."""

from __future__ import annotations

import pytest
from kops.interpret import InterpretError
from kops.interpret._geometry import evaluate
from support.expressions import EXPRESSIONS, SHAPE, N


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_expression(text: str) -> None:
    wanted = EXPRESSIONS[text]
    names = {"n": N, "p": SHAPE}
    if wanted is not None:
        assert evaluate(text, names, "grid[0]") == wanted
    else:
        with pytest.raises(InterpretError):
            evaluate(text, names, "grid[0]")
