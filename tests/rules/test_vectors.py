"""Scalar arguments as the daemon takes them: tests/vectors/scalars.json, which the daemon's unit tests run, too."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from kops._base.errors import KopsError
from kops._source.scalars import convert, is_plain, to_bytes

ROWS = json.loads((Path(__file__).resolve().parents[1] / "vectors/scalars.json").read_text(encoding="utf-8"))


def number(row: dict[str, str]) -> Any:
    text = row["number"]
    if row["kind"] == "float":
        return float.fromhex(text) if "0x" in text else math.copysign(float(text.lstrip("-")), -1 if text[0] == "-" else 1)
    return bool(int(text)) if row["kind"] == "bool" else int(text)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['dtype']} {row['kind']} {row['number']}")
def test_scalar(row: dict[str, str]) -> None:
    if "error" in row:
        with pytest.raises(KopsError) as caught:
            convert(row["dtype"], number(row), "x:", "x")
        assert caught.value.code == row["error"]
    else:
        assert to_bytes(row["dtype"], convert(row["dtype"], number(row), "x:", "x")).hex() == row["bytes"]


def test_what_is_plain() -> None:
    """A number that is passed on as it is is one that would be taken, and most are."""
    plain = [row for row in ROWS if is_plain(row["dtype"], number(row))]
    for row in plain:
        assert "error" not in row, row
        taken = convert(row["dtype"], number(row), "x:", "x")
        assert type(taken) is type(number(row)) and taken == number(row), row
    assert {row["dtype"] for row in plain} == {row["dtype"] for row in ROWS} - {"bool"}
    assert not is_plain("bool", 1) and not is_plain("f32", math.nan) and not is_plain("i32", True)
