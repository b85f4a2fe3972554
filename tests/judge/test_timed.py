"""The timed part, on the stand-in, whose times mean nothing: what is launched, checked and told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from kops import judge
from kops.judge import _gpu, _timed
from material import SIGNATURE, VECTOR, add, task


def test_a_right_solution_has_times(gpu: judge.Judge) -> None:
    vector = judge.Solution(VECTOR, [judge.Launch("vector_add", SIGNATURE, grid="ceil_div(n, 256)", block=256)])
    verdict = gpu.judge(task(baseline=vector), add())
    assert verdict.right, verdict
    time = verdict.time
    assert time is not None and time.case == "n=3001" and time.bytes == 3 * 4 * 3001
    for one in (time.cold, time.warm, time.baseline):
        assert one is not None and one.us > 0 and one.low is not None and one.low <= one.us <= one.high
    assert time.cold is not None and time.cold.launches >= 6 and time.us == time.cold.us
    assert time.speedup is not None and time.speedup_low is not None and time.speedup_low <= time.speedup
    assert time.gb_s == pytest.approx(time.bytes / time.us / 1e3) and time.roof == pytest.approx(time.gb_s / 100)
    assert verdict.launches > 8 + 2 * 6
    assert "baseline" in str(verdict) and judge.Verdict.of(verdict.json()).json() == verdict.json()


def test_an_op_as_the_baseline(gpu: judge.Judge) -> None:
    verdict = gpu.judge(task(baseline="add"), add())
    assert verdict.right and verdict.time is not None and verdict.time.speedup is not None
    verdict = gpu.judge(task(baseline="no_such_op"), add())
    assert verdict.kind == "no_verdict" and "no op 'no_such_op'" in verdict.text


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The timed launches: which inputs, and where the outputs are."""
    seen: list[Any] = []
    filled = _timed._Timing.filled

    def spy(self: Any, draw: Any) -> Any:
        made = filled(self, draw)
        seen.append((draw, made[1]["c"]))
        return made

    monkeypatch.setattr(_timed._Timing, "filled", spy)
    yield seen


def test_no_timed_launch_sees_inputs_again(gpu: judge.Judge, launches: list[Any]) -> None:
    gpu.limits = gpu.limits._replace(until=1e-9, at_most=60, launches=14)
    assert gpu.judge(task(), add()).right
    assert len(launches) > _timed.TIMED_DRAWS  # so some had elements exchanged
    inputs = {draw.tensors["a"].data.tobytes() for draw, _ in launches}
    assert len(inputs) == len(launches)
    for draw, _ in launches:
        assert numpy.array_equal(draw.expected[0].values, draw.tensors["a"].data.astype("f8") + draw.tensors["b"].data)


@pytest.mark.parametrize("after", [1, 7, 20])
def test_a_result_that_turns_wrong_while_it_is_timed(gpu: judge.Judge, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """As a solution would do that counts its launches."""
    count = 0
    read = _gpu.GpuRunner.read

    def spoiled(self: Any, plan: Any, memory: Any, draw: Any) -> Any:
        nonlocal count
        outputs, inputs = read(self, plan, memory, draw)
        count += 1
        if count == 8 + after:  # those of two cases come first
            outputs["c"].data[100] += 1
        return outputs, inputs

    monkeypatch.setattr(_gpu.GpuRunner, "read", spoiled)
    verdict = gpu.judge(task(), add())
    assert (verdict.kind, verdict.why) == ("wrong", "value") and verdict.worst is not None and verdict.worst.index == (100,)


def test_times_that_disagree(gpu: judge.Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_timed, "wall_us", lambda timings: timings.exec_us * 0.5)
    monkeypatch.setattr(_timed, "IMPOSSIBLE_US", 0.0)
    verdict = gpu.judge(task(), add())
    assert (verdict.kind, verdict.why) == ("wrong", "time_disagrees")
    monkeypatch.setattr(_timed, "IMPOSSIBLE", 1e9)
    monkeypatch.setattr(_timed, "wall_us", lambda timings: timings.exec_us + 1e6)
    gpu.limits = gpu.limits._replace(slack_us=1000.0)
    verdict = gpu.judge(task(), add())
    assert (verdict.kind, verdict.why) == ("wrong", "time_disagrees") and "behind each other" in verdict.text
    monkeypatch.setattr(_timed, "wall_us", lambda timings: timings.exec_us + 100)
    assert gpu.judge(task(), add()).right
