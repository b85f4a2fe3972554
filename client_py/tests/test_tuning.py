"""What tuning says, as text and from daemons of other versions."""

from __future__ import annotations

from typing import Any

from kops._base.records import Choice
from kops._base.results import tuned_of


def reply(**more: Any) -> dict[str, Any]:
    candidates = [{"variant": "cublaslt", "what": "cublaslt 1", "state": "measured", "us": 30.0}]
    candidates += [{"variant": "tiled", "what": "tiled", "state": "left_out"}]
    return {
        "device": "GPU-1", "machine": "m", "problem": "gemm f32 16x24x40", "candidates": candidates, "best": 0, "before": 0,
        "usual": 0, "noise": 0.01, "took_us": 900.0, **more,
    }  # fmt: skip


def test_what_there_was_no_time_for() -> None:
    part = tuned_of(reply(tried=1, goes_on=False))
    assert (part.tried, part.goes_on, part.gain) == (1, False, 1.0)
    assert "of 1 of 2 candidates so far" in str(part).splitlines()[0] and "measuring" not in str(part)
    assert "so far" not in str(tuned_of(reply(tried=2, goes_on=False)))


def test_a_reply_before_anything_is_measured() -> None:
    nothing = [{"variant": "cublaslt", "what": "what runs now", "state": "left_out"}]
    early = tuned_of(reply(tried=0, goes_on=True, candidates=nothing))
    assert early.goes_on and early.best.us is None and early.gain is None
    assert str(early).splitlines()[0] == "gemm f32 16x24x40: what runs now, of 0 of 1 candidates so far (still measuring)"


def test_an_older_daemon() -> None:
    old = tuned_of(reply())
    assert old.tried is None and not old.goes_on and "so far" not in str(old)
    row = {"machine": "m", "problem": "p", "variant": "tiled", "what": "tiled", "us": 2.0, "usual": "cublaslt 1", "noise": 0.0, "at": 1.0}
    assert Choice.read(row).tried is None
    later = Choice.read({**row, "tried": 3, "candidates": 28})
    assert (later.tried, later.candidates) == (3, 28)
