"""A solution that waits for the GPU, which another client has for itself: not slow, not hanging, no cheat."""

from __future__ import annotations

import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kops
import numpy
import pytest
from conftest import LIMITS, soon
from kops import judge
from kops.judge import _gpu, _judge, _verdict
from material import HANGS, SHORT, SIGNATURE, VECTOR, add, task
from support import proc, raw

from support.daemon import Daemon  # isort: skip

pytestmark = pytest.mark.usefixtures("unlocated")
LONG_MS = 5000  # the most that exclusive work may keep others waiting
DEADLINE = 2.0  # seconds, of which a launch takes no part worth mentioning


class Other:
    """A client whose kernel goes on when the test says so, and keeps all others off the GPU until then."""

    def __init__(self, daemon: Daemon, control: Any) -> None:
        self.daemon, self.control = daemon, control
        self.client = kops.connect(daemon.socket_path, isolate="connection", timeout=raw.PATIENCE, autostart=False)
        self.arrays = [self.client.array(numpy.ones(8, "f4"), device=0) for _ in range(3)]
        before = set(proc.executors(daemon.pid))
        self.add = self.client.kernel(VECTOR, "vector_add", SIGNATURE, grid="ceil_div(n, 256)", block=256)
        self.add(*self.arrays, 8, blocking=True)
        (self.executor,) = set(proc.executors(daemon.pid)) - before
        self.gate: Any = None
        self.pending: Any = None

    def begin(self) -> None:
        self.gate = self.control.gate("kernel", self.executor)
        self.gate.__enter__()
        self.pending = self.add.submit(*self.arrays, 8, exclusive=True)
        self.control.wait_for(lambda: self.control.row(self.executor).waiting("kernel") == 1, raw.PATIENCE)

    def end(self) -> None:
        if self.gate is not None:
            self.gate.__exit__(None, None, None)
            self.gate = None
            self.pending.result()


@pytest.fixture
def other(request: pytest.FixtureRequest, start: Callable[..., Daemon], tmp_path: Path) -> Iterator[Other]:
    from standin_cuda import Control

    control = Control()
    daemon = start(more=f"exclusive_ms = {request.param}\nlongest_s = 3600\nmax = 32\n", env={**control.env, "KOPSD_EXECUTORS_ACTIVE": "4"})
    made = Other(daemon, control)
    yield made
    made.end()
    made.client.close()
    daemon.stop()


@pytest.fixture
def waits(other: Other, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why judgements have ended that had only waited. Then the GPU is free again."""
    seen: list[str] = []
    real = _judge.verdict_of

    def spy(*args: Any) -> Any:
        try:
            return real(*args)
        except _verdict.Busy as error:
            seen.append(str(error))
            other.end()
            raise

    monkeypatch.setattr(_judge, "verdict_of", spy)
    return seen


def begins_at(monkeypatch: pytest.MonkeyPatch, other: Other, *timed: bool) -> None:
    """The other client begins just before a launch, once for each of these."""
    real, to_come = _gpu.GpuRunner.launched, list(timed)

    def spy(self: Any, *args: Any, **how: Any) -> Any:
        if to_come and how.get("timed", False) == to_come[0]:
            to_come.pop(0)
            other.begin()
        return real(self, *args, **how)

    monkeypatch.setattr(_gpu.GpuRunner, "launched", spy)


def judge_of(other: Other, **more: Any) -> judge.Judge:
    return judge.Judge(other.daemon.socket_path, seed=1, deadline=DEADLINE, limits=LIMITS, peak_gb_s=100.0, **more)


@pytest.mark.parametrize("other", [LONG_MS], indirect=True)
def test_it_is_judged_when_the_gpu_is_free(other: Other, waits: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it waits more often than a daemon may be gone: in the check, and for its times."""
    with judge_of(other) as made:
        assert made.judge(task(), add(prelude="// before")).right
        begins_at(monkeypatch, other, False, True)
        verdict = made.judge(task(), add())
        assert verdict.right and verdict.time is not None and verdict.time.cold is not None, verdict
        assert len(waits) == 2 and all("other work until the deadline" in wait for wait in waits)
        with soon(made):
            assert made.judge(task(), HANGS).kind == "hangs"


@pytest.mark.parametrize("other", [LONG_MS], indirect=True)
def test_it_does_not_wait_for_ever(other: Other, waits: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_judge, "BUSY_MAX", 0.1)
    with judge_of(other, time=False) as made:
        begins_at(monkeypatch, other, False)
        verdict = made.judge(task(), add())
        assert verdict.kind == "no_verdict" and "the GPU had other work for" in verdict.text and len(waits) == 1, verdict
        assert made.judge(task(), add()).right


@pytest.mark.parametrize("other", [50], indirect=True)
def test_beside_work_that_outlasts_its_time_it_is_right(other: Other) -> None:
    """The other client's kernel does not end, and after the bound the judge's run beside it."""
    with judge_of(other, time=False) as made:
        other.begin()
        assert made.judge(task(), add()).right
        assert made.judge(task(), SHORT).kind == "wrong"
        assert not other.pending.done()


def test_a_solution_cannot_make_itself_wait(gpu: judge.Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own first launch took most of the deadline, so that the second one did not begin: that is not waited for again and again."""
    tried: list[Any] = []
    took = [0.0]
    real = _gpu.GpuRunner.arguments
    monkeypatch.setattr(_gpu, "time", types.SimpleNamespace(monotonic=lambda: time.monotonic() + took[0]))

    def late(self: Any, one: Any, memory: Any) -> Any:
        if one.launch.grid == 99:
            tried.append(one)
            raise kops.DeadlineExceeded("deadline_ms passed before the job ended; it had not started")
        took[0] += 0.9 * self.deadline
        return real(self, one, memory)

    monkeypatch.setattr(_gpu.GpuRunner, "arguments", late)
    second = judge.Launch("add2_kernel", SIGNATURE, grid=99, block=256)
    verdict = gpu.judge(task(), judge.Solution(add().source, [*add().launches, second]))
    assert verdict.kind == "no_verdict" and "went away twice" in verdict.text and len(tried) == 2, (verdict, tried)
