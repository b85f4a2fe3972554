"""What users read: the logger "kops", warnings, shown where the user's code called this package, words in messages, and tables."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import Any

log = logging.getLogger("kops")


def uncollected(what: str, error: BaseException | None) -> None:
    """A request has failed, and nobody will hear of it."""
    if error is not None:
        code: Any = getattr(error, "code", type(error).__name__)
        log.warning("%s failed and nobody asked for its result: %s [%s]", what, error, code)


OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep, "<op "  # the op methods are made of text


class TurnsWarning(RuntimeWarning):
    """Ordered calls make this process and the daemon take turns on a GPU, which costs each of them a change of contexts."""

    __module__ = "kops"


def warn(message: str, category: type[Warning], source: object = None) -> None:
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OURS):
        frame = frame.f_back
        level += 1
    warnings.warn(message, category, stacklevel=level, source=source)


def counted(count: int, noun: str) -> str:
    """ "1 input", "2 inputs"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def closest_first(name: str, known: Iterable[str]) -> list[str]:
    """What there is, the most similar to what was asked for first."""
    return sorted(known, key=lambda other: -SequenceMatcher(None, name.lower(), other.rpartition("::")[2].lower()).ratio())


# Tables: what a cell says, and columns as wide as their widest cell


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
