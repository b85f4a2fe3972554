"""Tables as text: what a cell says, and columns as wide as their widest cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NONE = "-"  # a cell without a value
CELL_MAX = 95  # characters


def text(value: str) -> str:
    """A text of others. Bytes that a terminal could take for a command become `?`."""
    return "".join(chr(b) if 0x20 <= b < 0x7F else "?" for b in value.encode("utf-8", "surrogateescape"))[:CELL_MAX] or NONE


def number(value: float | None) -> str:
    """Times and rates, with two digits behind the point below 10 and one below 1000."""
    if value is None:
        return NONE
    return f"{value:.{2 if value < 10 else 1 if value < 1000 else 0}f}"


def shapes(value: Iterable[Sequence[int]]) -> str:
    """`8x8,8x8`."""
    return ",".join("x".join(map(str, shape)) or "scalar" for shape in value)[:CELL_MAX] or NONE


def layout(rows: Sequence[Sequence[str]], align: str) -> str:
    """Rows, the titles among them, below each other. `align` has `l` or `r` for each column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, align, strict=True)
        lines.append("  ".join(cell.rjust(width) if side == "r" else cell.ljust(width) for cell, width, side in cells).rstrip())
    return "\n".join(lines)
