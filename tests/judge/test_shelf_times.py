"""Times of solutions whose draws are in the GPU's memory: launches that are asked for, and looked at, together."""

from __future__ import annotations

import gc
import random
import time as clock
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kops import Timings, judge
from kops.judge import _gpu, _shelf, _timed, _unseen
from material import SIGNATURE, add, spy, task
from shelves import SMALL, WIDE, Make, Numpy, after_launches, believe, flip, judge_of, shelved

__all__ = ["shelved", "judge_of"]


def test_launches_that_do_each_other_s_work(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose times do not add up are measured again, one by one."""
    pipelined = _gpu.GpuRunner.pipelined

    def deferred(self: Any, *rest: Any) -> Any:
        made = pipelined(self, *rest)
        return [replace(one, gpu_us=1.0, wall_us=1e6) for one in made[:-1]] + [replace(made[-1], gpu_us=1e5, wall_us=1e6)]

    monkeypatch.setattr(_gpu.GpuRunner, "pipelined", deferred)
    monkeypatch.setattr(_unseen, "TOGETHER", 3)
    made = judge_of()
    seen: list[dict[str, Any]] = []
    spy(monkeypatch, _gpu.GpuRunner, "launched", lambda *_, **how: seen.append(how))
    verdict = made.judge(task(**SMALL), add())
    assert verdict.right and verdict.time is not None and verdict.time.cold is not None
    assert sum(bool(how.get("timed")) for how in seen) >= 14 and verdict.time.cold.us != 1.0


@pytest.mark.parametrize(("us", "apart", "more"), [(5.0, 0.2, False), (5.0, 0.3, True), (100.0, 1.9, False), (100.0, 2.1, True)])
def test_when_a_median_is_known(us: float, apart: float, more: bool) -> None:
    """Within 2 %, or within what clocks tell of short kernels."""
    timing = object.__new__(_timed._Timing)
    timing.limits = judge.Limits()
    found = [_timed._Launched(Timings(gpu_us=us + apart * side, timer="cupti"), None) for side in (-1, 0, 1) for _ in range(5)]
    assert timing.wants(found, 6, clock.monotonic() + 100) is more
    assert not timing.wants(found, 6, 0.0), "there is no time left"


def test_nobody_knows_the_last_launch(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that counts its launches could leave all work to the last one before a look: how many they are is drawn."""
    unseen = object.__new__(_unseen.Unseen)
    unseen.random = random.Random(1)
    assert {unseen.more(19) for _ in range(1000)} == {15, 16, 17, 18, 19} and {unseen.more(4) for _ in range(1000)} == {3, 4}
    assert unseen.more(1) == unseen.more(2) - 1 == 1
    monkeypatch.setattr(_unseen, "TOGETHER", 3)
    believe(monkeypatch)
    drawn = [11, 13]
    monkeypatch.setattr(_unseen.Unseen, "more", lambda self, most: drawn.pop(0) if drawn else most)
    counts: list[int] = []
    spy(monkeypatch, _gpu.GpuRunner, "pipelined", lambda made, runner, runs, *_: counts.append(len(runs)))
    assert judge_of().judge(task(**SMALL), add()).right
    assert counts[:2] == [11, 13], "warm, then cold ones"


@pytest.mark.parametrize("part", [0, 1, 2], ids=["warm", "cold", "behind each other"])
def test_timed_launches_that_have_done_nothing(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    """Nothing that comes later can do the work of cold ones, which come last before a look, nor of the runs behind each other."""
    monkeypatch.setattr(_unseen, "TOGETHER", 3)
    seen: list[str] = []

    def spoil(name: str, at: int) -> None:
        def wrong(made: Any, runner: Any, runs: Any, *rest: Any) -> None:
            seen.append(rest[0].__name__ if rest else name)
            if len(seen) == at + 1:
                flip(runs[-1][1], "c", 3)

        spy(monkeypatch, _gpu.GpuRunner, name, wrong)

    spoil("pipelined", part)
    spoil("together", part)
    believe(monkeypatch)
    verdict = judge_of().judge(task(**SMALL), add())
    assert verdict.kind == "wrong" and "c[0]" in verdict.text, verdict
    assert seen == ["warming", "flushing", *(["together"] if part == 2 else [])]


CUSTOM = add().source + 'extern "C" __global__ void custom_kernel(float* c, const float* a, int m) {}'


def test_numbers_that_are_drawn(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each timed launch has those of its own draw."""
    monkeypatch.setattr(_unseen, "TOGETHER", 3)
    believe(monkeypatch)

    def drawn(rng: Any, n: int) -> dict[str, Any]:
        return {**{name: rng.standard_normal(n, dtype="f4") for name in "ab"}, "m": int(rng.integers(10, n - 10))}

    def reference(a: Any, b: Any, m: int) -> Any:
        return np.where(np.arange(a.size) < m, 2 * a, a + b)

    one = task(**SMALL, inputs=drawn, reference=reference, exchange=False)
    twice = judge.Launch("custom_kernel", "inout float* c, const float* a, int m", grid=8, block=256)
    solution = judge.Solution(CUSTOM, [*add().launches, twice])
    assert judge_of().judge(one, solution).right


def test_an_integer_that_is_off_within_its_tolerance(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge's kernels take it for wrong, and the host does not: memory is filled then where it was not."""
    monkeypatch.setattr(_unseen, "TOGETHER", 3)
    believe(monkeypatch)
    count = [0]

    def off(held: _shelf.Held) -> None:
        count[0] += 1
        if count[0] in (3, 10):
            flip(held.memory, "c", 0, 1)

    after_launches(monkeypatch, off)
    loose = {"precision": "native", "tolerance": judge.Tolerance(atol=2.0), "exchange": False}
    whole = task(**SMALL, reference=lambda a, b: (a + b).view("i4"), **loose)
    launch = judge.Launch("add2_kernel", SIGNATURE.replace("float* c", "int* c"), grid="ceil_div(n, 256)", block=256)
    source = add().source.replace("float* c", "int* c")
    made = judge_of(seed=None)
    assert made.judge(whole, judge.Solution(source + "// first", [launch])).right  # draws are kept from it
    count[0] = 0
    verdict = made.judge(whole, judge.Solution(source, [launch]))
    assert verdict.right and count[0] >= 10, verdict


def test_what_a_timed_launch_has_left_is_told_first(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    believe(monkeypatch)
    held, asked = _unseen.Unseen.held, []

    def spent(self: Any, count: int) -> Any:
        asked.append(count)
        if len(asked) > 1:
            raise _timed.Stop("no_verdict", "there is no memory for it", True)
        return held(self, count)

    spy(monkeypatch, _gpu.GpuRunner, "pipelined", lambda made, runner, runs, *_: flip(runs[0][1], "c", 3))
    monkeypatch.setattr(_unseen.Unseen, "held", spent)
    verdict = judge_of().judge(task(**SMALL), add())
    assert len(asked) == 2 and verdict.kind == "wrong" and "c[0]" in verdict.text


def test_requests_have_no_more_tensors_than_the_daemon_takes(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _shelf.STEPS * (2 * WIDE + 1) <= 2048
    believe(monkeypatch)
    monkeypatch.setattr(_shelf, "STEPS", 8)
    assert judge_of().judge(task(**SMALL), add()).right
    assert shelved.longest == 8


def test_draws_end_with_their_solution(shelved: Numpy, judge_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was made for the times of one that is wrong, and that nobody keeps."""
    made = judge_of(seed=None)
    made._pool._most = 0
    seen: list[Any] = []
    spy(monkeypatch, _unseen, "draw", lambda draw, *_: seen.append(weakref.ref(draw)))
    after_launches(monkeypatch, lambda held: flip(held.memory, "c", 3))
    gc.collect()
    gc.disable()
    try:
        assert made.judge(task(cases=[{"n": 1000}]), add()).kind == "wrong"
        made._crew.submit(int).result()
        count = len(seen)
        made.judge(task(cases=[{"n": 1000}]), add(prelude="// the lane forgets the last one with the next"))
        assert count and not any(one() for one in seen[:count])
    finally:
        gc.enable()
