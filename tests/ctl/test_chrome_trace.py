"""The tests' model of Chrome's trace format refuses what a viewer would not show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import chrome_trace

ROWS = [
    {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "a program"}},
    *({"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": f"row {tid}"}} for tid in (1, 2)),
]


def slice_(tid: int, ts: float, dur: float) -> dict[str, Any]:
    return {"ph": "X", "pid": 1, "tid": tid, "ts": ts, "dur": dur, "cat": "call", "name": "add"}


def step(phase: str, tid: int, ts: float, arrow: int = 1) -> dict[str, Any]:
    made = {"ph": phase, "pid": 1, "tid": tid, "ts": ts, "id": arrow, "cat": "call", "name": "work"}
    return {**made, "bp": "e"} if phase == "f" else made


RIGHT = [slice_(1, 0.5, 10), slice_(1, 0.5, 10), slice_(1, 2, 3.5), slice_(1, 5.5, 1), slice_(1, 10.5, 0), slice_(2, 7, 2)]
RIGHT += [step("s", 1, 6), step("f", 2, 7), step("s", 1, 0.5, 2), step("t", 1, 3, 2), step("f", 2, 8.999, 2)]


def test_what_is_right() -> None:
    made = chrome_trace.check([*ROWS, *RIGHT])
    assert made.categories["call"] == 6 and len(made.arrows) == 2


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ([slice_(1, 5, 6)], "without nesting"),
        ([slice_(1, 10.499, 0.002)], "without nesting"),
        ([slice_(2, 7, 3)], "without nesting"),
        ([slice_(1, 10.5, 2)], "without a length"),
        ([slice_(1, 10.5, 0)], "without a length"),
        ([slice_(3, 0, 1)], "no name"),
        ([slice_(1, -1, 1)], ""),
        ([slice_(1, 20, float("nan"))], ""),
        ([{**slice_(1, 20, 1), "tid": "1"}], ""),
        ([{**slice_(1, 20, 1), "cat": ""}], ""),
        ([{**slice_(1, 20, 1), "ph": "B"}], "does not write"),
        ([{key: value for key, value in slice_(1, 20, 1).items() if key != "dur"}], ""),
        ([step("s", 1, 6, 3)], ""),
        ([step("f", 2, 7, 3)], ""),
        ([step("s", 1, 6, 3), step("f", 2, 7, 3), step("f", 2, 8, 3)], ""),
        ([step("s", 1, 9, 3), step("f", 2, 8, 3)], "back in time"),
        ([step("s", 1, 6, 3), step("f", 2, 12, 3)], "touches nothing"),
        ([step("s", 1, 6, 3), step("f", 2, 9, 3)], "touches nothing"),
        ([step("s", 1, 6, 3), {**step("f", 2, 8, 3), "bp": "s"}], "the slice around it"),
        ([ROWS[0]], "told twice"),
    ],
)
def test_what_is_wrong(wrong: list[dict[str, Any]], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        chrome_trace.check([*ROWS, *RIGHT, *wrong])


@pytest.mark.parametrize("text", ['{"a": NaN}', '{"a": -Infinity}', '{"a": 1, "a": 2}', '{"a": 1,}', "", '{"a": 1} 2'])
def test_what_is_no_json(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError):
        chrome_trace.load(path)
