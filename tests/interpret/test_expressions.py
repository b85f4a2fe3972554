"""Expressions mean in the interpreter what they mean to the daemon."""

from __future__ import annotations

import pytest
from kops.interpret import InterpretError
from kops.interpret._expressions import evaluate
from support.expressions import EXPRESSIONS, NAMES


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_expression(text: str) -> None:
    wanted = EXPRESSIONS[text]
    if wanted is not None:
        assert evaluate(text, NAMES, "grid[0]") == wanted
    else:
        with pytest.raises(InterpretError):
            evaluate(text, NAMES, "grid[0]")
