"""How long a right solution takes. Every timed launch gets inputs that the solution has not seen, in memory of their own, writes to
poisoned outputs, and is checked: a result that was remembered, or not computed, shows."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from statistics import mean, median
from typing import Any, NamedTuple

from .._base import intervals
from .._base.errors import KopsError
from .._base.results import Timings
from .._clients.client import Client
from ._baseline import Baseline
from ._bind import Plan, plan_of
from ._check import changed_input, check_outputs
from ._device import wall_us
from ._draws import Draw, changed, new_seed
from ._gpu import GpuRunner, Memory, errors
from ._lane import Job
from ._poison import poisons_of
from ._rounds import failed
from ._stop import Stop
from ._verdict import Measured, Time, Worst

__all__ = ["TIMED_DRAWS", "Found", "Limits", "timed"]

TIMED_DRAWS = 24  # of which each is used once
# Above what the launches took one by one, their time together may be so much: gaps between kernels, the daemon's wake-up.
TOGETHER_FACTOR, GAP_US = 1.5, 10.0
TOGETHER, TOGETHER_FEW, TOGETHER_BYTES = 32, 8, 1 << 30  # runs behind each other: few where the reference is slow
SLOW = 0.02  # seconds for a draw
STEPS_MOST = 256  # of a sequence
OVERHEAD_LEAST, OVERHEAD_FACTOR = 200.0, 2.0
IMPOSSIBLE, IMPOSSIBLE_US = 1.05, 10.0  # a kernel cannot be longer than the daemon's clock around it, but for such errors
LATENCY = 0.3  # of the roof: below, neither memory nor arithmetic holds it up


class Limits(NamedTuple):
    """Of a measurement, cold and warm each. `until`: the half width of the interval as a part of the median that is enough; `at_most`:
    seconds for that; `launches`: at most. `flush_bytes`: more than the second-level cache has, read and written before cold ones.
    `slack_us`: what the daemon's clock may show beyond the GPU's for many runs behind each other; None: by what trivial work of the
    daemon's own takes there."""

    until: float = 0.02
    at_most: float = 3.0
    launches: int = 64
    flush_bytes: int = 128 << 20
    slack_us: float | None = None


class Found(NamedTuple):
    time: Time
    warnings: tuple[str, ...]


class _Launched(NamedTuple):
    timings: Timings
    baseline_us: float | None


class _Timing:
    """The measurement of one solution. `flush` puts other things into the caches."""

    def __init__(self, job: Job, runner: GpuRunner, trusted: Client, baseline: Baseline | None, limits: Limits) -> None:
        self.job, self.task, self.solution = job, job.task, job.solution
        self.runner, self.trusted, self.baseline, self.limits = runner, trusted, baseline, limits
        self.unseen = list(job.timed)
        self.random = random.Random(new_seed())
        self.random.shuffle(self.unseen)
        self.number = max((one.number for one in job.timed), default=0)
        self.checks: list[Future[Worst | None]] = []
        self.walls: list[float] = []
        self._flushes: tuple[Any, Any] | None = None
        self._pool = ThreadPoolExecutor(2, "kops-judge-check")

    # Inputs

    def draw(self) -> Draw:
        """Inputs that the solution has not seen: of those that are kept, then with exchanged elements."""
        if self.unseen:
            return self.unseen.pop()
        self.number += 1
        return changed(self.task, self.random.choice(self.job.timed), new_seed(), self.number)

    def plan(self, draw: Draw) -> Plan:
        return plan_of(self.task, self.solution, draw, self.runner.multiprocessors)

    def filled(self, draw: Draw) -> tuple[Plan, Memory, dict[str, Any]]:
        plan, seed = self.plan(draw), new_seed()
        memory = self.runner.memory(plan, self.random.choice(("end", "start")))
        poisons = poisons_of(plan, seed)
        self.runner.fill(memory, draw, poisons, seed)
        return plan, memory, poisons

    # Caches

    def flush(self) -> None:
        client, device = self.runner.client, self.runner.gpu
        with errors():
            if self._flushes is None:
                size = max(self.limits.flush_bytes // 4, 1)
                self._flushes = client.zeros((size,), "f32", device=device), client.empty((size,), "f32", device=device)
            client.run("square", self._flushes[0], out=self._flushes[1])

    def warm(self, memory: Memory) -> None:
        """Reads the operands by an op of the daemon's, not by the solution: it must not see the inputs twice."""
        client, device = self.runner.client, self.runner.gpu
        with errors():
            for block in memory.values():
                if block.size >= 4:
                    whole = block.bytes_as("f32")
                    client.run("square", whole, out=client.empty(whole.shape, "f32", device=device))

    # Launches

    def check(self, draw: Draw, plan: Plan, memory: Memory, poisons: dict[str, Any]) -> None:
        """Reads what was written, and has it compared beside the next launches."""
        outputs, inputs = self.runner.read(plan, memory, draw)
        self.checks.append(
            self._pool.submit(lambda: changed_input(draw, inputs) or check_outputs(self.task, draw, outputs, poisons))
        )
        if len(self.checks) > 4:
            self.settle(len(self.checks) - 4)

    def settle(self, count: int) -> None:
        done, self.checks = self.checks[:count], self.checks[count:]
        for one in done:
            worst = one.result()
            if worst is not None:
                raise failed(worst)
            self.runner.checked += 1

    def launch(self, cold: bool) -> _Launched:
        draw = self.draw()
        before = self.random.random() < 0.5
        baseline_us = self.baseline.us(draw, self.flush) if cold and self.baseline is not None and before else None
        plan, memory, poisons = self.filled(draw)
        if cold:
            self.flush()
        else:
            self.warm(memory)
        timings = self.runner.launched(plan, memory, timed=True)
        assert timings is not None
        self.check(draw, plan, memory, poisons)
        if cold and self.baseline is not None and not before:
            baseline_us = self.baseline.us(draw, self.flush)
        wall = wall_us(timings)
        if wall is not None and timings.exec_us is not None:
            self.walls.append(wall)
            if timings.exec_us > IMPOSSIBLE * wall + IMPOSSIBLE_US:
                raise _disagrees(draw, timings.exec_us, wall, "one launch took longer by the GPU's clock than by the daemon's")
        return _Launched(timings, baseline_us)

    def series(self, cold: bool, least: int) -> list[_Launched]:
        """Launches until the median is known, or it lasts too long."""
        end = time.monotonic() + self.limits.at_most
        self.launch(cold)  # the first one loads code, and is checked like the others
        found: list[_Launched] = []
        while len(found) < self.limits.launches:
            if len(found) >= least:
                samples = [one.timings.exec_us for one in found if one.timings.exec_us is not None]
                narrow = intervals.width(intervals.of_median(samples), median(samples)) <= self.limits.until if samples else True
                if narrow or time.monotonic() >= end:
                    break
            found.append(self.launch(cold))
        return found

    def together(self, us: float) -> None:
        """Several draws behind each other, by the daemon's own clock: what each launch claims must fit into that."""
        begun = time.monotonic()
        first = self.draw()
        most = TOGETHER if time.monotonic() - begun < SLOW else TOGETHER_FEW
        count = max(1, min(most, STEPS_MOST // len(self.solution.launches), TOGETHER_BYTES // max(self.plan(first).nbytes, 1)))
        draws = [first, *(self.draw() for _ in range(count - 1))]
        ready = [self.filled(draw) for draw in draws]
        timings = self.runner.together(ready[0][0], [memory for _, memory, _ in ready])
        for draw, (plan, memory, poisons) in zip(draws, ready):
            self.check(draw, plan, memory, poisons)
        wall = wall_us(timings)
        if wall is None:
            return
        gaps = GAP_US * count * len(ready[0][0].launches)
        slack = self.limits.slack_us if self.limits.slack_us is not None else self.overhead()
        if wall > TOGETHER_FACTOR * us * count + gaps + slack:
            raise _disagrees(first, us, wall / count, f"{count} runs behind each other take longer than one by one")

    def overhead(self) -> float:
        """What the daemon's clock shows for almost no work, several times: from giving it away to seeing its end."""
        client, device = self.trusted, self.runner.gpu
        with errors():
            a, b = (client.zeros((256,), "f32", device=device) for _ in range(2))
            walls = [wall_us(client.run("square", a, out=b, timing=True)) for _ in range(9)]
        return OVERHEAD_LEAST + OVERHEAD_FACTOR * max(wall or 0.0 for wall in walls)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self.baseline is not None:
            self.baseline.close()


def _disagrees(draw: Draw, us: float, wall: float, why: str) -> Stop:
    worst = Worst("time_disagrees", "", (), us, wall, str(draw.case), draw.number)
    text = f"{why}: {us:.1f} µs by the GPU's clock, {wall:.1f} µs by the daemon's, in the case {draw.case}"
    return Stop("wrong", text, True, worst=worst)


def _measured(launched: Sequence[_Launched]) -> Measured | None:
    samples = [one.timings.exec_us for one in launched if one.timings.exec_us is not None]
    return measured(samples)


def measured(samples: Sequence[float]) -> Measured | None:
    if not samples:
        return None
    low, high = intervals.of_median(samples) or (None, None)
    return Measured(median(samples), low, high, len(samples))


def _ratios(launched: Sequence[_Launched]) -> list[float]:
    return [
        one.baseline_us / one.timings.exec_us for one in launched if one.baseline_us is not None and one.timings.exec_us
    ]


def _counters(timing: _Timing) -> dict[str, Any]:
    """Of the solution's first launch; nothing where the device does not count."""
    draw = timing.draw()
    plan, memory, poisons = timing.filled(draw)
    one = plan.launches[0]
    with contextlib.suppress(KopsError):
        profile = timing.runner.kernel(one).profile(
            *timing.runner.arguments(one, memory), warmup=0, repeat=1, counters=True, conditions=False, **timing.runner.geometry(one)
        )
        if profile.counters is not None:
            counted = profile.counters
            return {"kernel": one.launch.entry, "verdict": counted.verdict, "why": counted.why, **dict(counted.values)}
    return {}


def _time(timing: _Timing, cold: Sequence[_Launched], warm: Sequence[_Launched], peak: float | None, counters: dict[str, Any]) -> Time:
    case = timing.task.timed_case
    size = timing.plan(timing.job.timed[0]).operand_bytes
    one = _measured(cold)
    gb_s = size / one.us / 1e3 if one is not None and one.us else None
    roof = gb_s / peak if gb_s is not None and peak else None
    bound = str(counters.get("verdict") or "")
    if not bound and roof is not None:
        bound = "memory" if roof >= LATENCY else "latency or compute"
    ratios = _ratios(cold)
    low, high = intervals.of_median(ratios) or (None, None)
    return Time(
        str(case), one, _measured(warm), measured([us for launch in cold if (us := launch.baseline_us) is not None]),
        median(ratios) if ratios else None, low, high, mean(timing.walls) if timing.walls else None,
        cold[0].timings.timer if cold else "", size, gb_s, roof, bound, counters,
    )  # fmt: skip


def timed(
    job: Job, runner: GpuRunner, trusted: Client, baseline: Callable[[], Baseline | None], limits: Limits, peak: float | None,
    counters: bool,
) -> Found:
    """Raises Stop for a launch whose result is wrong, or whose time cannot be."""
    timing = _Timing(job, runner, trusted, baseline(), limits)
    try:
        cold = timing.series(True, intervals.FEWEST)
        warm = timing.series(False, intervals.FEWEST)
        one = _measured(cold)
        if one is not None:
            timing.together(one.us)
        timing.settle(len(timing.checks))
        counted = _counters(timing) if counters else {}
        warnings = [] if one is not None else ["the device tells no times"]
        if one is not None and intervals.width((one.low or 0, one.high or 0), one.us) > 5 * limits.until:
            warnings.append("the times vary widely: the GPU had other work, or its clocks changed")
        return Found(_time(timing, cold, warm, peak, counted), tuple(warnings))
    finally:
        timing.close()
