"""Verdicts as a page: one file, without scripts, that needs no other."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from .. import BadArgument
from .._companions import table
from ..profiler._page import STYLE
from ._table import WORDS, plain
from ._verdict import Measured, Verdict

MORE = """
.right { color: var(--c2); } .wrong, .faulted, .hangs, .not_compiled, .refused { color: var(--c1); }
.no_verdict, .unproven { color: var(--rest); }
pre { background: var(--stripe); padding: .6em; overflow-x: auto; } td.text { white-space: normal; }
"""
WIDTH, BAR, LEFT = 860, 22, 220


def escaped(text: object) -> str:
    return escape(plain(str(text)))


def _head(verdicts: Sequence[Verdict]) -> str:
    right = sum(one.right for one in verdicts)
    return f"<h1>Verdicts</h1><p>{right} of {len(verdicts)} solutions are right.</p>"


def _rows(verdicts: Sequence[Verdict]) -> Iterable[str]:
    for number, one in enumerate(verdicts):
        time = one.time
        us = _number(time.us) if time is not None else ""
        speed = f"{time.speedup:.2f} ×" if time is not None and time.speedup is not None else ""
        gb_s = _number(time.gb_s) if time is not None and time.gb_s is not None else ""
        kind = WORDS[one.kind] + (f": {one.why}" if one.why else "")
        name = f'<a href="#v{number}">{escaped(one.solution or number)}</a>'
        yield (
            f'<tr><td class="l">{escaped(one.task)}</td><td class="l">{name}</td><td class="l {one.kind}">{escaped(kind)}</td><td>{us}</td>'
            f'<td>{speed}</td><td>{gb_s}</td><td class="l text">{escaped(one.text)}</td></tr>'
        )


def _number(value: float | None) -> str:
    return table.number(value)


def _table(verdicts: Sequence[Verdict]) -> str:
    heads = ("task", "solution", "verdict", "µs", "speed-up", "GB/s", "")
    head = "".join(f'<th class="l">{one}</th>' if one in ("task", "solution", "verdict", "") else f"<th>{one}</th>" for one in heads)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(_rows(verdicts))}</tbody></table></div>'


def _bar(name: str, one: Measured, at: int, scale: float, colour: str) -> str:
    low, high = one.low if one.low is not None else one.us, one.high if one.high is not None else one.us
    y = 20 + at * BAR
    middle = y + 7
    return (
        f'<text x="4" y="{y + 12}">{escaped(name[:34])}</text>'
        f'<rect x="{LEFT}" y="{y}" width="{one.us * scale:.1f}" height="14" style="fill:{colour}"/>'
        f'<line x1="{LEFT + low * scale:.1f}" x2="{LEFT + high * scale:.1f}" y1="{middle}" y2="{middle}" stroke="currentColor"/>'
        f'<text class="over" x="{LEFT + one.us * scale + 6:.1f}" y="{y + 12}">{_number(one.us)} µs</text>'
    )


def times(verdicts: Sequence[Verdict]) -> str:
    """Bars with the intervals in which the medians lie."""
    bars: list[tuple[str, Measured, str]] = []
    for one in sorted((v for v in verdicts if v.time is not None), key=lambda v: v.time.us if v.time else 0):
        assert one.time is not None
        for name, colour in (("cold", "var(--c0)"), ("warm", "var(--c4)"), ("baseline", "var(--rest)")):
            measured = getattr(one.time, name)
            if measured is not None:
                bars.append((f"{one.solution or one.task}, {name}", measured, colour))
    if not bars:
        return ""
    most = max(measured.high or measured.us for _, measured, _ in bars)
    scale = (WIDTH - LEFT - 90) / most if most else 1.0
    body = "".join(_bar(name, measured, at, scale, colour) for at, (name, measured, colour) in enumerate(bars))
    drawing = f'<svg viewBox="0 0 {WIDTH} {40 + BAR * len(bars)}" font-family="sans-serif" font-size="12">{body}</svg>'
    return f'<h2>Times</h2><p class="note">Medians, with their intervals of 95 %.</p><div class="wide">{drawing}</div>'


def _details(number: int, one: Verdict) -> str:
    head = f'<h2 id="v{number}" class="{one.kind}">{escaped(one.solution or number)}: {escaped(WORDS[one.kind])}</h2>'
    parts = [head, f"<pre>{escaped(one)}</pre>"]
    if one.log:
        parts.append(f"<details><summary>The compiler's log</summary><pre>{escaped(one.log)}</pre></details>")
    return "".join(parts)


def page(verdicts: Sequence[Verdict]) -> str:
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
        f"<title>kops judge</title><style>{STYLE}{MORE}</style></head><body>",
        _head(verdicts), _table(verdicts), times(verdicts),
        *(_details(number, one) for number, one in enumerate(verdicts)),
    ]  # fmt: skip
    return "\n".join([*parts, "</body></html>\n"])


def write(verdicts: Sequence[Verdict], path: str | os.PathLike[str]) -> None:
    """A page, .html."""
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise BadArgument(f"the verdicts are written as a page, .html; not {os.fspath(path)!r}")
    Path(path).write_text(page(verdicts), encoding="utf-8")
