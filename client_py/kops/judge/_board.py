"""Verdicts as a leaderboard: for each task its right solutions, the fastest first, and what became of the others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from .. import BadArgument
from .._companions import table
from ..profiler._page import STYLE
from ._page import MORE, escaped, times
from ._table import WORDS
from ._verdict import Verdict

LINE_MAX = 8 << 20


def load_verdicts(path: str | os.PathLike[str]) -> list[Verdict]:
    """The verdicts of a file that has one as JSON a line, as `kopsctl judge --json` prints them. Raises BadArgument."""
    found = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if len(line) > LINE_MAX:
                    raise BadArgument(f"{os.fspath(path)}:{number}: no verdict is that long")
                if line.strip():
                    found.append(Verdict.of(line))
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, BadArgument):
            raise
        raise BadArgument(f"{os.fspath(path)}: {error}: it should have a verdict as JSON a line") from None
    return found


def ranked(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The best of each solution by its name: right ones by their time, then right ones without times, then unproven ones, then the others
    as they came. Right ones alone have a place."""
    best: dict[str, Verdict] = {}
    for number, one in enumerate(verdicts):
        name = one.solution or f"#{number}"
        if name not in best or _order(one) < _order(best[name]):
            best[name] = one
    return sorted(best.values(), key=_order)


def _order(one: Verdict) -> tuple[int, float]:
    if one.right and one.time is not None and one.time.us == one.time.us:
        return 0, one.time.us
    return (1 if one.right else 2 if one.kind == "unproven" else 3), 0.0


def _row(place: int, one: Verdict, fastest: float | None) -> str:
    time = one.time if one.right else None
    us = table.number(time.us) if time is not None else ""
    behind = f"{time.us / fastest:.2f} ×" if time is not None and fastest else ""
    speed = f"{time.speedup:.2f} ×" if time is not None and time.speedup is not None else ""
    gb_s = table.number(time.gb_s) if time is not None and time.gb_s is not None else ""
    kind = WORDS[one.kind] + (f": {one.why}" if one.why else "")
    rank = str(place) if one.right else ""
    return (
        f'<tr><td>{rank}</td><td class="l">{escaped(one.solution)}</td><td class="l {one.kind}">{escaped(kind)}</td><td>{us}</td>'
        f'<td>{behind}</td><td>{speed}</td><td>{gb_s}</td><td class="l">{escaped(one.device)}</td></tr>'
    )


def _task(name: str, verdicts: Sequence[Verdict]) -> str:
    order = ranked(verdicts)
    right_us = [one.time.us for one in order if one.right and one.time is not None]
    heads = ("place", "solution", "verdict", "µs", "of the first", "of the baseline", "GB/s", "device")
    head = "".join(f'<th class="l">{one}</th>' if one in ("solution", "verdict", "device") else f"<th>{one}</th>" for one in heads)
    rows = "".join(_row(place, one, right_us[0] if right_us else None) for place, one in enumerate(order, 1))
    right = sum(one.right for one in order)
    return (
        f"<h2>{escaped(name)}</h2><p>{right} of {len(order)} solutions are right.</p>"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        f"{times([one for one in order if one.right])}"
    )


def leaderboard(verdicts: Iterable[Verdict], path: str | os.PathLike[str]) -> None:
    """Writes the page, .html. Verdicts of one task on several devices stand in one table, which has the devices' names."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise BadArgument(f"a leaderboard is a page, .html; not {os.fspath(path)!r}")
    tasks: dict[str, list[Verdict]] = {}
    for one in verdicts:
        tasks.setdefault(one.task, []).append(one)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>kops leaderboard</title><style>{STYLE}{MORE}</style></head><body>",
        "<h1>Leaderboard</h1>",
        *(_task(name, found) for name, found in tasks.items()),
        "</body></html>\n",
    ]
    Path(path).write_text("\n".join(parts), encoding="utf-8")
