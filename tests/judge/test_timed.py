"""The timed part, on the stand-in, whose times mean nothing: what is launched, checked and told."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import kops
import numpy
import pytest
from kops import judge
from kops._kernels.kernels import Kernel
from kops.judge import _gpu, _timed
from material import ADD, RIGHT, add, spy, task
from support.daemon import Daemon


def test_a_right_solution_has_times(gpu: judge.Judge) -> None:
    verdict = gpu.judge(task(baseline=RIGHT), add())
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


def test_caches_are_flushed_without_a_library(gpu: judge.Judge, daemon: Daemon) -> None:
    """A process that is new to the GPU would take two seconds to load cuBLASLt."""
    assert gpu.judge(task(), add()).right
    with kops.connect(daemon.socket_path) as client:
        assert {row["variant"] for row in client.stats()["ops"] if row["op"] == "gemm"} == {"small"}


def test_counters_take_nobody_elses_time(gpu: judge.Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(_timed, "_counters", lambda timing: asked.append(True) or {})
    other: Any = object()
    for counters, waits, reads in ((None, False, True), (None, True, False), (False, False, False), (True, True, True)):
        gpu.counters = counters
        asked.clear()
        if waits:
            gpu._jobs.add(other)
        assert gpu.judge(task(), add()).right
        gpu._jobs.discard(other)
        assert bool(asked) == reads, (counters, waits)


@pytest.mark.parametrize(("launches", "bound"), [([ADD], "compute"), ([ADD, ADD], "memory")])
def test_counters_of_one_launch_are_not_told_of_several(
    gpu: judge.Judge, monkeypatch: pytest.MonkeyPatch, launches: list[judge.Launch], bound: str
) -> None:
    """What bounds a solution of several launches is told by its time alone: its first launch may be the least of it."""
    counted = SimpleNamespace(counters=SimpleNamespace(verdict="compute", why="the tensor cores are busy", values={"dram_pct": 7.0}))
    monkeypatch.setattr(Kernel, "profile", lambda *_, **__: counted)
    gpu.counters, gpu.peak_gb_s = True, 1e-9  # so that the time's roof is memory
    verdict = gpu.judge(task(), judge.Solution(add().source, launches))
    assert verdict.right and verdict.time is not None
    time = verdict.time
    assert (time.bound, time.counters_of, time.counters["verdict"]) == (bound, "add2_kernel", "compute"), verdict
    assert f"bound by {bound}" in str(verdict) and judge.Verdict.of(verdict.json()).time == time


def test_a_baseline_is_kept(gpu: judge.Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """For all solutions of its task, in one process."""
    made: list[Any] = []
    spy(monkeypatch, _gpu.Executor, "__init__", lambda _, executor, *rest: made.append(executor))
    several = [task(baseline=RIGHT) for _ in range(2)]
    for i in range(3):
        for one in several:
            verdict = gpu.judge(one, add(prelude=f"// {i} {one.key}"))
            assert verdict.right and verdict.time is not None and verdict.time.speedup is not None, verdict
    assert len(made) == 2, "one for the judge's own kernels, which do not run here, and the baseline's; the solutions' is there already"
    assert gpu.judge(task(baseline=add("x")), add(prelude="// z")).kind == "no_verdict"
    assert gpu.judge(several[0], add(prelude="// y")).right and len(made) == 3


def test_an_op_as_the_baseline(gpu: judge.Judge) -> None:
    verdict = gpu.judge(task(baseline="add"), add())
    assert verdict.right and verdict.time is not None and verdict.time.speedup is not None
    verdict = gpu.judge(task(baseline="no_such_op"), add())
    assert verdict.kind == "no_verdict" and "no op 'no_such_op'" in verdict.text


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The timed launches: which inputs, and where the outputs are."""
    seen: list[Any] = []
    spy(monkeypatch, _timed._Timing, "filling", lambda made, timing, staged: seen.append((staged.draw, made[0]["c"])))
    yield seen


def test_no_timed_launch_sees_inputs_again(gpu: judge.Judge, launches: list[Any]) -> None:
    gpu.limits = gpu.limits._replace(until=1e-9, at_most=60, launches=14)
    assert gpu.judge(task(), add()).right
    assert len(launches) > _timed.TIMED_DRAWS  # so some were made for this solution
    inputs = [draw.tensors["a"].data for draw, _ in launches]
    alike = [numpy.mean(a == b) for a, b in itertools.combinations(inputs, 2)]
    assert max(alike) < 0.1, "a result that was kept for nearly the same inputs could be updated"
    for draw, _ in launches:
        assert numpy.array_equal(draw.expected[0].values, draw.tensors["a"].data.astype("f8") + draw.tensors["b"].data)


@pytest.mark.parametrize("after", [1, 7, 20])
def test_a_result_that_turns_wrong_while_it_is_timed(gpu: judge.Judge, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """As a solution would do that counts its launches."""
    count = itertools.count(1)
    ended = _gpu.GpuRunner.ended

    def spoiled(copies: Any) -> Any:
        images = ended(copies)
        if images and next(count) == 10 + after:  # those of two cases come first
            images["c"][400:404].view("f4")[0] += 1
        return images

    monkeypatch.setattr(_gpu.GpuRunner, "ended", staticmethod(spoiled))
    verdict = gpu.judge(task(), add())
    assert (verdict.kind, verdict.why) == ("wrong", "value") and verdict.worst is not None and verdict.worst.index == (100,)


def test_a_launch_that_claims_too_much(gpu: judge.Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_timed, "wall_us", lambda timings: timings.exec_us * 0.5)
    monkeypatch.setattr(_timed, "IMPOSSIBLE_US", 0.0)
    verdict = gpu.judge(task(), add())
    assert (verdict.kind, verdict.why) == ("wrong", "time_disagrees"), verdict


@pytest.mark.parametrize("alone", [True, False, None])
def test_launches_that_claim_too_little(gpu: judge.Judge, monkeypatch: pytest.MonkeyPatch, alone: bool | None) -> None:
    monkeypatch.setattr(_timed, "wall_us", lambda timings: timings.exec_us + 1e6)
    monkeypatch.setattr(_timed, "was_alone", lambda timings: alone)
    gpu.limits = gpu.limits._replace(slack_us=1000.0)
    verdict = gpu.judge(task(), add())
    if alone:
        assert (verdict.kind, verdict.why) == ("wrong", "time_disagrees") and "behind each other" in verdict.text
    else:
        assert verdict.right and any("behind each other" in warning for warning in verdict.warnings)
        assert any("other work was on the GPU" in warning for warning in verdict.warnings) == (alone is False)


def test_launches_that_claim_what_they_take(gpu: judge.Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_timed, "wall_us", lambda timings: timings.exec_us + 100)
    monkeypatch.setattr(_timed, "was_alone", lambda timings: True)
    assert gpu.judge(task(), add()).right  # with a slack that no noise of the stand-in's exceeds


@pytest.mark.parametrize(
    ("late", "alone", "accused", "warned"),
    [
        (0, True, False, False),
        (4, True, False, False),  # of five: the GPU stalled
        (5, True, True, False),
        (5, None, False, True),
        (5, False, False, True),
    ],
)
def test_who_is_late_every_time_is_accused(
    monkeypatch: pytest.MonkeyPatch, late: int, alone: bool | None, accused: bool, warned: bool
) -> None:
    """Of runs behind each other that take longer than one by one; where the GPU may have had other work it is a warning."""
    monkeypatch.setattr(_timed, "PAUSES", (0.0,) * 5)
    timing = object.__new__(_timed._Timing)
    timing.warnings, timing.quiet = [], lambda: None
    trials = iter([(_timed.Stop("wrong", "late"), alone)] * late + [(None, alone)])
    monkeypatch.setattr(timing, "behind_each_other", lambda us: next(trials), raising=False)
    if accused:
        with pytest.raises(_timed.Stop):
            timing.together(5.0)
    else:
        timing.together(5.0)
    assert bool(timing.warnings) == warned


@pytest.mark.parametrize(
    ("times", "honest"),
    [
        ([[5.0] * 15, [3.0] * 15], True),
        ([[9.0] + [5.0] * 14, [7.0] + [3.0] * 14], True),  # code that was loaded
        ([[2.0] * 15, [2.0] * 14 + [12.0]], False),  # 15 kernels of 12 us, all done by the last one
        ([[2.0] * 15, [2.0] * 13 + [4.0] * 2], True),
        ([[2.0] * 15, [25.0] + [2.0] * 14], False),
        ([[0.1] * 15, [0.1] * 14 + [120.0]], False),
        ([[4.0] * 15, [2.0] * 14 + [30.0]], False),
        ([[100.0] * 15, [90.0] * 15], True),
        ([[100.0] * 14 + [500.0], [90.0] * 15], False),
        ([[50.0] * 15, [100.0] * 14 + [240.0]], True),
        ([[10.0] * 14 + [40.0], [100.0] * 15], False),  # each kind by itself
        ([[], []], True),
    ],
)
def test_times_that_add_up(times: Any, honest: bool) -> None:
    assert _timed.adds_up(times) == honest


@pytest.mark.parametrize(
    ("warm", "cold", "fits"),
    [(5.0, 9.0, True), (9.0, 9.0, True), (12.5, 9.0, True), (14.0, 9.0, False), (120.0, 100.0, False)],
)
def test_warm_launches_do_nothing_for_cold_ones(warm: float, cold: float, fits: bool) -> None:
    """Their times would be longer."""
    assert _timed.warm_is_no_longer([warm] * 14, [cold] * 14) == fits and _timed.warm_is_no_longer([], [cold])
