"""A verdict as text."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .._companions import table
from ._verdict import Measured, Time, Verdict

WORDS = {
    "right": "right", "unproven": "unproven", "not_compiled": "does not compile", "refused": "refused", "wrong": "wrong",
    "faulted": "faults", "hangs": "hangs", "no_verdict": "no verdict",
}  # fmt: skip
LOG_LINES = 20


def plain(value: str) -> str:
    """A text of a stranger's: what a terminal could take for a command becomes `?`."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in value)


def _measured(name: str, one: Measured | None) -> list[list[str]]:
    if one is None:
        return []
    known = f"{table.number(one.low)} to {table.number(one.high)}" if one.low is not None else table.NONE
    return [[name, table.number(one.us), known, str(one.launches)]]


def row(verdict: Verdict) -> list[str]:
    """Solution, verdict, microseconds, speed-up, text."""
    time = verdict.time
    kind = WORDS[verdict.kind] + (f": {verdict.why}" if verdict.why else "")
    speedup = f"{time.speedup:.2f} ×" if time is not None and time.speedup is not None else table.NONE
    return [verdict.solution, kind, table.number(time.us) if time is not None else table.NONE, speedup, verdict.text]


def summary(verdicts: Sequence[Verdict]) -> str:
    """A row for each verdict, the fastest right solution first."""
    ordered = sorted(verdicts, key=lambda one: (not one.right, one.kind != "unproven", one.time.us if one.time is not None else math.inf))
    rows = [["solution", "verdict", "us", "speed-up", ""], *(row(one) for one in ordered)]
    return table.layout([[plain(cell).replace("\n", " ")[: table.CELL_MAX] for cell in cells] for cells in rows], "llrrl")


def _roof(time: Time) -> str:
    if time.roof is None:
        return ""
    of = f" of {time.roof_of}" if time.flops else ""
    with_dtype = f" with {time.dtype}" if time.roof_of == "arithmetic" else ""
    return f"{100 * time.roof:.0f} % of the roof{of}{with_dtype}, bound by {time.bound}"


def text(verdict: Verdict) -> str:
    """All that it says."""
    names = " ".join(filter(None, (verdict.task, verdict.solution)))
    lines = [f"{names + ': ' if names else ''}{WORDS[verdict.kind]}" + (f" ({verdict.why})" if verdict.why else "")]
    lines += [f"  {verdict.text}"] if verdict.text else []
    if verdict.fault is not None and verdict.fault.text and verdict.fault.text not in verdict.text:
        lines.append(f"  {verdict.fault.text}")
    if verdict.log:
        shown = verdict.log.splitlines()
        lines += [f"  | {line}" for line in shown[:LOG_LINES]]
        lines += [f"  | … {len(shown) - LOG_LINES} more lines"] if len(shown) > LOG_LINES else []
    if verdict.cases:
        lines.append(f"  right in {verdict.launches} launches of {len(verdict.cases)} cases: {'; '.join(verdict.cases)}")
    time = verdict.time
    if time is not None:
        parts = [line for name in ("cold", "warm", "baseline") for line in _measured(name, getattr(time, name))]
        rows = [["", "us", "95 %", "launches"], *parts]
        lines += [f"  {line}" for line in table.layout(rows, "lrrr").splitlines()]
        facts = [f"{time.speedup:.2f} × the baseline's speed" if time.speedup is not None else ""]
        facts.append(f"{time.gb_s:,.0f} GB/s" if time.gb_s is not None else "")
        facts.append(f"{time.gflop_s:,.0f} GFLOP/s" if time.gflop_s is not None else "")
        facts.append(_roof(time))
        lines += [f"  {', '.join(filter(None, facts))}"] if any(facts) else []
    where = {"gpu": f"on {verdict.device}", "interpreter": "in the interpreter, without times"}.get(verdict.how, "")
    lines += [f"  {where}, in {verdict.seconds:.2f} s"] if where else []
    lines += [f"  WARNING: {one}" for one in verdict.warnings]
    return plain("\n".join(lines))
