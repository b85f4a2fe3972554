"""How long a right solution takes, and which roof is above it: how fast memory or arithmetic would let it be (Williams, Waterman,
Patterson, "Roofline", 2009). Every timed launch gets inputs that the solution has not seen, in memory of their own, writes to poisoned
outputs, and is checked: a result that was remembered, or not computed, shows."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import threading
import time as clock
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from statistics import mean, median
from typing import Any, NamedTuple

from .. import Client, KopsError, Timings
from .._companions import intervals
from ..interpret._expressions import evaluate
from ..profiler._report import LATENCY
from ._carrier import Block, Copies, Memory, Staged, timed_alone, wall_us, was_alone
from ._draws import Draw, draw, new_seed
from ._gpu import VARIED_BYTES, GpuRunner, ahead_of, errors, wrong_in
from ._machine import Baseline, Peaks
from ._runner import Job, Runner, failed
from ._shelf import Held, Image
from ._task import Task
from ._values import FLOATS
from ._verdict import Gone, Measured, Refused, Stop, TaskFault, Time, Worst

TOGETHER, TOGETHER_FEW, TOGETHER_BYTES = 32, 8, 1 << 30  # runs one after the other: few where the reference is slow
TOGETHER_US = 2000.0  # microseconds beyond which more runs tell nothing new: many times the errors of the daemon's clock
SLOW = 2.0  # seconds that missing draws may take, where many are wanted
STEPS_MOST = 256
# Launches to ask for before the first has ended, and the fraction of the deadline that they may take together.
SEVERAL, DEADLINE_PART = 24, 0.25
MOSTLY_ENOUGH, WARM_ENOUGH = 14, 10  # launches for a median with a narrow enough interval; caches make the warm ones steadier
# Possible numbers of launches, from enough launches on: a kernel that defers its work to the last launch has to guess the last one.
ENDS = 5


def usual(nbytes: int) -> int:
    """How many draws the times of a solution mostly take, whose launches have about so many bytes of memory."""
    at_once = VARIED_BYTES // max(nbytes, 1)
    first = min(WARM_ENOUGH + ENDS, at_once) + min(MOSTLY_ENOUGH + ENDS, at_once)
    return first + min(TOGETHER, TOGETHER_BYTES // max(nbytes, 1))


class Unseen:
    """The unseen inputs of one solution. `shelf`: where they are in the GPU's memory, if they can be."""

    def __init__(self, job: Job, runner: GpuRunner) -> None:
        self.job, self.task, self.runner = job, job.task, runner
        self.shelf = runner.shelf if runner.shelf is not None and runner.shelf.takes(job.timed[0]) else None
        self.beside = ahead_of(job.timed[0].nbytes)
        self.random = random.Random(new_seed())
        self._rest = [*job.timed, *job.kept()]
        self.random.shuffle(self._rest)
        self._number = max((one.number for one in self._rest), default=0)
        self._drawing = threading.Lock()
        self._first: list[Held] = []
        self.firsts = 1, 1  # warm and cold launches that first() has memory of
        self._coming: deque[Future[Draw]] = deque()

    def draw(self) -> Draw:
        """One of the kept draws, later a new one. Any thread's."""
        with self._drawing:
            if self._rest:
                return self._rest.pop()
        return self._new()

    def _new(self) -> Draw:
        with self._drawing:
            self._number += 1
            number = self._number
        made = draw(self.task, self.task.timed_case, new_seed(), number)
        self.job.keep(made)
        return made

    def side(self) -> str:
        return self.random.choice(("end", "start"))

    def held(self, count: int) -> list[Held]:
        """So many launches' memory, which is to be filled from the shelf."""
        assert self.shelf is not None
        made = []
        with self._drawing:
            draws = [self._rest.pop() for _ in range(min(count, len(self._rest)))]
        new = [self._coming.popleft() if self._coming else self.runner.crew.submit(self._new) for _ in range(count - len(draws))]
        try:
            draws += [one.result() for one in new]
        finally:
            for one in new:
                one.cancel()
        images = {drawn: self.runner.crew.submit(Image, drawn) for drawn in draws if not self.shelf.expects(drawn)}
        for drawn in draws:
            plan = self.runner.plan(self.task, drawn)
            memory = self.runner.memory(plan, self.side())
            made.append(self.shelf.hold(plan, drawn, memory, images[drawn].result() if drawn in images else None))
        return made

    def expect(self) -> None:
        """Has the draws that are missing for the usual number of launches made beside the check."""
        missing = usual(self._nbytes) - len(self._rest)
        if self._quick(missing):
            self._coming += [self.runner.crew.submit(self._new) for _ in range(missing)]

    def _quick(self, draws: int) -> bool:
        return draws * median(one.seconds for one in self.job.timed) / (1 + self.beside) <= SLOW

    def close(self) -> None:
        """Draws that were expected and are not needed are not made, and nothing is held."""
        for one in self._coming:
            one.cancel()
        for kept in (self._coming, self._rest, self._first):
            kept.clear()

    # The first launches. The check tells roughly how long one takes.

    @property
    def most(self) -> int:
        """How many launches may be asked for at once."""
        return max(1, min(SEVERAL, int(self.runner.deadline * DEADLINE_PART / self._seconds), VARIED_BYTES // self._nbytes))

    def _counts(self) -> tuple[int, int]:
        """How many launches come first, warm ones and cold ones."""
        return self.more(min(WARM_ENOUGH + ENDS, self.most)), self.more(min(MOSTLY_ENOUGH + ENDS, self.most))

    def more(self, most: int) -> int:
        """How many launches come next of a kind: nobody knows which will be the last."""
        return max(1, most - self.random.randrange(min(ENDS, max(1, most // 2))))

    @property
    def _nbytes(self) -> int:
        """Bytes of a launch's memory."""
        return max(self.runner.plan(self.task, self.job.timed[0]).nbytes, 1)

    @property
    def _seconds(self) -> float:
        return self.runner.seconds.get(self.task.timed_case, self.runner.deadline)

    def ask(self) -> list[Held]:
        """Memory of the first launches of each kind, which who asks has filled; no memory where inputs would have to be made first."""
        counts = self._counts()
        if sum(counts) <= len(self._rest):
            self._first, self.firsts = self.held(sum(counts)), counts
        return self._first

    def first(self) -> list[Held]:
        """Memory of the first launches, filled in any case. No reference runs beside the launches."""
        assert self.shelf is not None
        wait(self._coming)
        made, self._first = self._first, []
        if not made:
            self.firsts = self._counts()
            made = self.held(sum(self.firsts))
            self.shelf.fill(made)
        return made

    def count_behind(self, us: float, ahead: int = 0) -> int:
        """How many runs behind each other, where one takes so long, and so many are prepared already."""
        missing = TOGETHER - 1 - ahead - len(self._rest) - len(self._coming)
        most = TOGETHER if self._quick(missing) else TOGETHER_FEW
        enough = max(TOGETHER_FEW, math.ceil(TOGETHER_US / max(us, 1e-3)))
        enough = 1 << (enough - 1).bit_length()  # few numbers: what the daemon's clock shows besides is known by them
        return max(1, min(most, enough, STEPS_MOST // len(self.job.solution.launches), TOGETHER_BYTES // self._nbytes))


def prepare(job: Job, runner: Runner) -> None:
    """Before the last cases of the check: where their launches are looked at the memory of the first timed ones is filled, too."""
    if isinstance(runner, GpuRunner) and job.timed:
        unseen = Unseen(job, runner)
        runner.unseen = unseen
        if unseen.shelf is not None and job.task.baseline is None:
            runner.fill_at_last = unseen.ask
            unseen.expect()


TIMED_DRAWS = 24  # draws for timing, each used once
# Launches together may take this many times the sum of their own times: gaps between kernels, the daemon's wake-up.
TOGETHER_FACTOR = 1.5
FLUSH_ROW = 1024  # elements
COPIES = 2  # copies to ask for before an earlier copy has ended
PAUSES = (0.0, 0.0, 0.1, 0.3, 1.0)  # seconds before each trial: a process that begins stalls the GPU for some 0.2 s
MORE = 16  # further launches, where the first ones were not enough
OVERHEAD_LEAST, OVERHEAD_FACTOR = 200.0, 3.0
IMPOSSIBLE, IMPOSSIBLE_US = 1.05, 10.0  # a kernel cannot take longer than the daemon's clock around it, apart from such errors
ROOF_MOST = 1.15  # most that operands outside of caches can reach of the roof


class Limits(NamedTuple):
    """Limits of a measurement, cold and warm each. `until`: the half width of the interval as a part of the median that is enough, and
    `until_us` in microseconds, whichever is wider: no clock knows short kernels to 2 %. `at_most`: seconds for that; `launches`: at
    most. `flush_bytes`: more than the second-level cache has; twice that is read before a cold launch. `slack_us`: what the daemon's clock
    may show beyond the GPU's for many runs behind each other; None: by what trivial work of the daemon's own takes there."""

    until: float = 0.02
    at_most: float = 3.0
    launches: int = 64
    flush_bytes: int = 128 << 20
    slack_us: float | None = None
    until_us: float = 0.25

    def enough(self, us: float) -> float:
        """Half width of an interval that is narrow enough, as a part of its median."""
        return max(self.until, self.until_us / max(us, 1e-3))


class Found(NamedTuple):
    time: Time
    warnings: tuple[str, ...]


class _Launched(NamedTuple):
    timings: Timings
    baseline_us: float | None


class _Timing:
    """The measurement of one solution. `flush` puts other things into the caches."""

    def __init__(
        self, job: Job, runner: GpuRunner, trusted: Client, baseline: Baseline | None, limits: Limits, overheads: dict[int, float],
        quiet: Callable[[], None],
    ) -> None:  # fmt: skip
        self.job, self.task, self.solution = job, job.task, job.solution
        self.runner, self.trusted, self.baseline, self.limits, self.overheads = runner, trusted, baseline, limits, overheads
        self.quiet = quiet
        self.unseen: Unseen = runner.unseen or Unseen(job, runner)
        self.beside, self.shelf = self.unseen.beside, self.unseen.shelf
        self.random = random.Random(new_seed())
        self.checks: deque[Future[Worst | None]] = deque()
        self.walls: list[float] = []
        self.disturbed = 0  # timed launches that were not alone
        self.warnings: list[str] = []
        self.filled: list[Held] = []  # for runs behind each other
        self._flushes: tuple[Block, ...] | None = None
        self._warmed: Block | None = None
        self._ahead: deque[Future[Staged]] = deque()
        self._reading: deque[tuple[Staged, Memory, Copies]] = deque()

    # Inputs, drawn and put into shared memory while earlier launches run.

    def _stage(self) -> Staged:
        draw = self.unseen.draw()
        return self.runner.carrier.stage(self.runner.plan(self.task, draw), draw, new_seed())

    def staged(self, ahead: int | None = None) -> Staged:
        """The next draw's content, while `ahead` more are prepared for later."""
        while len(self._ahead) <= (self.beside if ahead is None else ahead):
            self._ahead.append(self.runner.crew.submit(self._stage))
        return self._ahead.popleft().result()

    def look(self, several: Sequence[Held], then: Sequence[Held] = ()) -> None:
        """Whether they are right; others' memory is filled. Raises Stop."""
        worst = self.runner.worst_of(self.task, several, then)
        if worst is not None:
            raise failed(worst)
        self.runner.checked += len(several)

    def filling(self, staged: Staged) -> tuple[Memory, Copies]:
        memory = self.runner.memory(staged.plan, self.unseen.side())
        return memory, self.runner.fill(memory, staged.images)

    # Caches. Memory on the solution's connection is allocated apart from the judge's other memory, which may hold the
    # right results.

    def flush(self) -> None:
        with errors():
            Copies({}, self.flushing()).wait()

    def flushing(self, _: Memory | None = None) -> Sequence[Any]:
        """A product that only reads, but for a few bytes: what caches have yet to write back would hold the next launch up. By a kernel of
        the daemon's own: the solution's process may be new, and would take two seconds to load cuBLASLt. By that one, since its loads are
        plain: others mark what they read as the first to be replaced, and may leave the caches' other lines where they are."""
        runner, rows = self.runner, max(2 * self.limits.flush_bytes // (4 * FLUSH_ROW), 1)
        if self._flushes is None:
            shapes = (rows, FLUSH_ROW), (FLUSH_ROW, 1), (rows, 1)
            self._flushes = tuple(runner.block(shape, "f32", "end") for shape in shapes)
        a, b, out = (block.tensor for block in self._flushes)
        return [runner.client.submit("gemm", a, b, out=out, variant="small")]

    def warm(self, memory: Memory) -> None:
        """Reads the operands by an op of the daemon's, not by the solution: it must not see the inputs twice."""
        with errors():
            Copies({}, self.warming(memory)).wait()

    def warming(self, memory: Memory) -> Sequence[Any]:
        most = max(block.size for block in memory.values())
        if self._warmed is None or self._warmed.size < most:
            self._warmed = self.runner.block((most,), "u8", "end")
        words = {block: (block.size // 4,) for block in memory.values() if block.size >= 4}
        submit, out = self.runner.client.submit, self._warmed
        return [submit("square", block.bytes_as("f32", n), out=out.bytes_as("f32", n)) for block, n in words.items()]

    # Launches

    def read(self, staged: Staged, memory: Memory) -> None:
        """Has what was written read. `check` comes behind it, so that other copies may be asked for in between."""
        self._reading.append((staged, memory, self.runner.read(memory)))

    def check(self, leave: int = 0) -> None:
        """Has what was read compared, beside the next launches, but for so many."""
        while len(self._reading) > leave:
            staged, memory, copies = self._reading.popleft()
            images = self.runner.ended(copies)
            self.runner.release(memory)
            self.checks.append(self.runner.crew.submit(wrong_in, self.task, staged, images))
            self.settle(len(self.checks) - 1 - self.beside)

    def settle(self, count: int) -> None:
        for _ in range(count):
            worst = self.checks.popleft().result()
            if worst is not None:
                raise failed(worst)
            self.runner.checked += 1

    def launch(self, cold: bool) -> _Launched:
        staged = self.staged()
        draw = staged.draw
        before = self.random.random() < 0.5
        baseline_us = self.baseline.us(draw, staged.images, self.flush) if cold and self.baseline is not None and before else None
        memory, copies = self.filling(staged)
        self.check()
        self.runner.ended(copies)
        if cold:  # wait for it: the deadline is the solution's own
            self.flush()
        else:
            self.warm(memory)
        timings = self.runner.launched(staged.plan, memory, timed=True)
        assert timings is not None
        self.read(staged, memory)
        if cold and self.baseline is not None and not before:
            baseline_us = self.baseline.us(draw, staged.images, self.flush)
        self.believe(draw, timings)
        return _Launched(timings, baseline_us)

    def believe(self, draw: Draw, timings: Timings) -> None:
        """Raises Stop for times that cannot be."""
        self.disturbed += was_alone(timings) is False
        wall = wall_us(timings)
        if wall is not None and timings.exec_us is not None:
            self.walls.append(wall)
            if timings.exec_us > IMPOSSIBLE * wall + IMPOSSIBLE_US:
                raise _disagrees(draw, timings.exec_us, wall, "one launch took longer by the GPU's clock than by the daemon's")

    def series(self, cold: bool, least: int) -> list[_Launched]:
        """Launches until the median is known, or it lasts too long."""
        end = clock.monotonic() + self.limits.at_most
        self.launch(cold)  # the first one loads code, and is checked like the others
        found: list[_Launched] = []
        while self.wants(found, least, end):
            found.append(self.launch(cold))
        return found

    def wants(self, found: Sequence[_Launched], least: int, end: float) -> bool:
        """More launches: the median is not known yet, and there is time."""
        if len(found) < least or len(found) >= self.limits.launches:
            return len(found) < least
        samples = _us(found)
        us = median(samples) if samples else 0.0
        narrow = not us or intervals.width(intervals.of_median(samples), us) <= self.limits.enough(us)
        return not narrow and clock.monotonic() < end

    def cold_and_warm(self, least: int) -> tuple[list[_Launched], list[_Launched]]:
        """Both series in batches; one by one where batches are not believed twice, since other work may have been there once."""
        for _ in range(2):
            found = self.batches(least)
            if found is not None:
                return found
            self.quiet()
        return self.series(True, least), self.series(False, least)

    def batches(self, least: int) -> tuple[list[_Launched], list[_Launched]] | None:
        """With memory filled from the shelf for all that is asked for at once: to let another process work on the GPU in between takes
        longer than most launches. Launches that were asked for together could do each other's work: None where their times do not say
        that each did its own. The cold ones, which count, come last, so that they leave nothing to the warm ones."""
        end = clock.monotonic() + 2 * self.limits.at_most
        warm: list[_Launched] = []
        cold: list[_Launched] = []
        ways: tuple[Callable[[Memory], Sequence[Any]], ...] = (self.warming, self.flushing)
        held = self.unseen.first()
        counts = list(self.unseen.firsts)
        while held:
            parts = held[: counts[0]], held[counts[0] :]
            made = [self.pipelined(part, way) if part else [] for part, way in zip(parts, ways)]
            warm, cold = warm + made[0], cold + made[1]
            honest = adds_up([_us(some) for some in made]) and warm_is_no_longer(_us(warm[1:]), _us(cold[1:]))
            most, then, failure = self.unseen.most, [], None
            rest = [self.unseen.more(min(MORE, most, self.limits.launches + 1 - len(some))) for some in (warm, cold)]
            counts = [one if self.wants(some[1:], least, end) and honest else 0 for one, some in zip(rest, (warm, cold))]
            for launch in held:  # memory is looked at before other launches' inputs come there
                self.runner.release(launch.memory)
            try:
                then = self.unseen.held(sum(counts)) if any(counts) or not honest else self.for_runs(cold)
            except (Stop, Refused, TaskFault, Gone) as error:  # told behind what the launches have left
                failure = error
            self.look(held, then)
            for part, some in zip(parts, made):
                for launched, one in zip(part, some):
                    self.believe(launched.draw, one.timings)
            if failure is not None:
                raise failure
            if not honest:
                return None
            held, self.filled = (then, []) if any(counts) else ([], then)
        return cold[1:], warm[1:]  # the first ones load code

    def for_runs(self, cold: Sequence[_Launched]) -> list[Held]:
        """Memory of the runs behind each other."""
        one = _measured(cold[1:])
        return [] if one is None else self.unseen.held(self.unseen.count_behind(one.us))

    def pipelined(self, part: Sequence[Held], before: Callable[[Memory], Sequence[Any]]) -> list[_Launched]:
        return [_Launched(one, None) for one in self.runner.pipelined([(one.plan, one.memory) for one in part], before)]

    def together(self, us: float) -> None:
        """Several draws behind each other, by the daemon's own clock: what each launch claims must fit into that. What else the GPU does
        is no solution's fault, least of all that processes begin on it, which the daemon does not count as work: so it is tried again, at
        last after pauses, and without the daemon's word that there was no other work it is a warning."""
        late, undisturbed = None, 0
        for pause in PAUSES:
            clock.sleep(pause)
            late, undisturbed_run = self.behind_each_other(us)
            if late is None:
                return
            undisturbed += undisturbed_run is True
            self.quiet()
        if late is not None and undisturbed > 1:
            raise late
        self.warnings.append(f"{late}; that may be other work on the GPU, since the daemon does not say that there was none")

    def behind_each_other(self, us: float) -> tuple[Stop | None, bool | None]:
        """How a judgement ends if that is too slow, and whether it was alone."""
        self.check()
        if self.shelf is None:
            count = self.unseen.count_behind(us, len(self._ahead))
            timings = self.staged_behind_each_other(self.staged(), count)
        else:
            held, self.filled = self.filled, []
            if not held:
                held = self.unseen.held(self.unseen.count_behind(us))
                self.shelf.fill(held)
            count = len(held)
            timings = self.runner.together([(one.plan, one.memory) for one in held])
            self.look(held)
            for launch in held:
                self.runner.release(launch.memory)
        return self.lateness(us, timings, count), None if wall_us(timings) is None else was_alone(timings)

    def lateness(self, us: float, timings: Timings, count: int) -> Stop | None:
        """How a judgement ends where so many runs behind each other took longer than their times say; None: they did not."""
        wall = wall_us(timings)
        if wall is None:
            return None
        longer = wall - TOGETHER_FACTOR * us * count
        if longer <= 0 or longer <= self.slack(count * len(self.solution.launches), longer):
            return None
        return _disagrees(self.job.timed[0], us, wall / count, f"{count} runs behind each other take longer than one by one")

    def staged_behind_each_other(self, first: Staged, count: int) -> Timings:
        ready: list[tuple[Staged, Memory]] = []
        filling: deque[Copies] = deque()
        for one in itertools.chain([first], (self.staged(left) for left in reversed(range(count - 1)))):
            memory, copies = self.filling(one)
            ready.append((one.uploaded(), memory))
            filling.append(copies)
            if len(filling) > COPIES:
                self.runner.ended(filling.popleft())
        for copies in filling:
            self.runner.ended(copies)
        timings = self.runner.together([(staged.plan, memory) for staged, memory in ready])
        for staged, memory in ready:
            self.read(staged, memory)
            self.check(COPIES)
        self.check()
        return timings

    def slack(self, launches: int, found: float) -> float:
        """The time that the daemon's clock may show beyond the GPU's for so many launches, where it shows `found`: the least that it ever
        was, if that is enough, and else what it is now, since the machine may be busier."""
        if self.limits.slack_us is not None:
            return self.limits.slack_us
        least = self.overheads.get(launches)
        if least is not None and found <= least:
            return least
        now = self.overhead(launches)
        self.overheads[launches] = now if least is None else min(least, now)
        return now

    def overhead(self, launches: int) -> float:
        """Several times what the daemon's clock shows for so many trivial launches of its own, from giving them away to seeing the end."""
        client, device = self.trusted, self.runner.gpu
        with errors():
            a, b = (client.zeros((256,), "f32", device=device) for _ in range(2))
            how = timed_alone(client)
            walls = [wall_us(client.sequence([("square", a, {"out": b})] * launches, **how)[1]) for _ in range(5)]
        return OVERHEAD_LEAST + OVERHEAD_FACTOR * max(wall or 0.0 for wall in walls)

    def close(self) -> None:
        """Waits for what still uses the draws."""
        for one in self._ahead:
            one.cancel()
        wait(self._ahead)
        wait(self.checks)


def _disagrees(draw: Draw, us: float, wall: float, why: str) -> Stop:
    worst = Worst("time_disagrees", "", (), us, wall, str(draw.case), draw.number)
    text = f"{why}: {us:.1f} µs by the GPU's clock, {wall:.1f} µs by the daemon's, in the case {draw.case}"
    return Stop("wrong", text, True, worst=worst)


def _us(launched: Sequence[_Launched]) -> list[float]:
    """The times that the device tells."""
    return [us for one in launched if (us := one.timings.exec_us) is not None]


def _measured(launched: Sequence[_Launched]) -> Measured | None:
    return measured(_us(launched))


def _counters(timing: _Timing) -> dict[str, Any]:
    """Counters of the solution's first launch alone, whose name is `kernel`; nothing where the device does not count."""
    staged = timing.staged()
    memory, copies = timing.filling(staged)
    timing.runner.ended(copies)
    one = staged.plan.launches[0]
    with contextlib.suppress(KopsError):
        profile = timing.runner.kernel(one).profile(
            *timing.runner.arguments(one, memory), warmup=0, repeat=1, counters=True, conditions=False, **timing.runner.geometry(one)
        )
        if profile.counters is not None:
            counted = profile.counters
            return {"kernel": one.launch.entry, "verdict": counted.verdict, "why": counted.why, **dict(counted.values)}
    return {}


def _time(timing: _Timing, cold: Sequence[_Launched], warm: Sequence[_Launched], peaks: Peaks, counters: dict[str, Any]) -> Time:
    case, job = timing.task.timed_case, timing.job
    size = timing.runner.plan(timing.task, timing.job.timed[0]).operand_bytes
    one = _measured(cold)
    took = one.us if one is not None else 0.0
    roof = roof_of(took, size, job.flops, peaks.gb_s, peaks.gflop_s, job.dtype)
    bound = str(counters.get("verdict") or "") if len(timing.solution.launches) == 1 else ""  # counters cover the first launch only
    if not bound and roof.part is not None:
        bound = roof.name if roof.part >= LATENCY else "latency" if roof.arithmetic is not None else "latency or compute"
    ratios = [one.baseline_us / us for one in cold if one.baseline_us is not None and (us := one.timings.exec_us)]
    low, high = intervals.of_median(ratios) or (None, None)
    flops = job.flops
    return Time(
        str(case), one, _measured(warm), measured([us for launch in cold if (us := launch.baseline_us) is not None]),
        median(ratios) if ratios else None, low, high, mean(timing.walls) if timing.walls else None,
        cold[0].timings.timer if cold else "", size, size / took / 1e3 if took else None, roof.part, bound, counters, roof.name,
        roof.memory, roof.arithmetic, flops, flops / took / 1e3 if flops and took else None, job.dtype if flops else "",
        str(counters.get("kernel") or ""),
    )  # fmt: skip


def timed(
    job: Job, runner: GpuRunner, trusted: Client, baseline: Baseline | None, limits: Limits, peaks: Peaks, counters: bool,
    quiet: Callable[[], None],
) -> Found:
    """`quiet` waits until the judge itself does nothing else on the GPU. Raises Stop for a launch whose result is wrong, or whose time
    cannot be."""
    timing = _Timing(job, runner, trusted, baseline, limits, {} if peaks.overheads is None else peaks.overheads, quiet)
    try:
        if timing.shelf is not None and baseline is None:
            with job.part("times"):
                cold, warm = timing.cold_and_warm(intervals.FEWEST)
        else:
            with job.part("cold"):
                cold = timing.series(True, intervals.FEWEST)
            with job.part("warm"):
                warm = timing.series(False, intervals.FEWEST)
        one = _measured(cold)
        with job.part("together"):
            if one is not None:
                timing.together(one.us)
            timing.check()
            timing.settle(len(timing.checks))
        with job.part("counters"):
            counted = _counters(timing) if counters else {}
        warnings = timing.warnings
        if one is None:
            warnings.append("the device tells no times")
        if 2 * timing.disturbed > len(cold) + len(warm):
            warnings.append("other work was on the GPU during most of the timed launches")
        if one is not None and intervals.width((one.low or 0, one.high or 0), one.us) > 5 * limits.enough(one.us):
            warnings.append("the times vary widely: the GPU had other work, or its clocks changed")
        time = _time(timing, cold, warm, peaks, counted)
        if time.memory_roof is not None and time.memory_roof > ROOF_MOST and time.bytes > limits.flush_bytes:
            warnings.append(f"{100 * time.memory_roof:.0f} % of the bandwidth that was measured: does it read all inputs?")
        if time.arithmetic_roof is not None and time.arithmetic_roof > ROOF_MOST:
            reached = f"{100 * time.arithmetic_roof:.0f} % of the arithmetic that was measured with {time.dtype}"
            warnings.append(f"{reached}: does it compute it all?")
        return Found(time, tuple(warnings))
    finally:
        timing.close()


# Agreement of the times of several launches

# Time that launches looked at together may take beyond their median, since others work on the GPU, too. The first
# launch may take FIRST_US more, since its code may have to be loaded; it comes before all others and does not know
# where their memory will be.
DEFERRED, DEFERRED_US, FIRST_US = 1.1, 3.0, 10.0
AHEAD, AHEAD_US = 1.1, 3.0  # a warm launch may take this many times, and this much more than, a cold one


def adds_up(times: Sequence[Sequence[float]]) -> bool:
    """Whether launches, all of which were looked at together, took about as long as their median says, those of each kind."""
    most = [(some, DEFERRED * median(some)) for some in times if some]
    return all(some[0] <= us + FIRST_US and sum(some[1:]) <= len(some[1:]) * us + DEFERRED_US for some, us in most)


def warm_is_no_longer(warm: Sequence[float], cold: Sequence[float]) -> bool:
    """Whether warm launches took no longer than the cold ones behind them: else they may have done their work."""
    return not warm or not cold or median(warm) <= AHEAD * median(cold) + AHEAD_US


def measured(samples: Sequence[float]) -> Measured | None:
    if not samples:
        return None
    low, high = intervals.of_median(samples) or (None, None)
    return Measured(median(samples), low, high, len(samples))


# Roofs

class Roof(NamedTuple):
    """`memory` and `arithmetic` are the parts of what the device can do that were reached. The larger one is of the roof that bounds."""

    memory: float | None = None
    arithmetic: float | None = None

    @property
    def part(self) -> float | None:
        parts = [part for part in self if part is not None]
        return max(parts) if parts else None

    @property
    def name(self) -> str:
        if self.part is None:
            return ""
        return "memory" if self.part == self.memory else "arithmetic"


def flops_of(task: Task, draw: Draw) -> float | None:
    """Floating-point operations of a draw's case. None: the task does not say. Raises TaskFault."""
    given = task.flops
    if isinstance(given, str):
        names = {**draw.case.numbers, **draw.numbers, **{name: tensor.shape for name, tensor in draw.tensors.items()}}
        try:
            given = evaluate(given, names, "flops")
        except KopsError as error:
            raise TaskFault(f"task {task.name}: {error}") from None
    elif callable(given):
        try:
            given = given(**draw.case)
        except Exception as error:
            raise TaskFault(f"task {task.name}: its flops raise {type(error).__name__}: {str(error)[:500]}") from None
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < math.inf:
        raise TaskFault(f"task {task.name}: its flops in the case {draw.case} are {given!r:.80}: they are a number of at least 0, or None")
    return float(given)


def dtype_of(draw: Draw) -> str:
    """In which a draw is computed: that of the inputs of floats with the most elements, else the outputs'."""
    sizes: dict[str, int] = {}
    for tensor in draw.tensors.values():
        if tensor.dtype in FLOATS:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + int(tensor.data.size)
    return max(sizes, key=lambda dtype: sizes[dtype]) if sizes else draw.expected[0].dtype


def roof_of(us: float, size: int, flops: float | None, peak_gb_s: float | None, peak_gflop_s: Mapping[str, float], dtype: str) -> Roof:
    """The roof above work on `size` bytes that takes so many microseconds."""
    if not us:
        return Roof()
    memory = size / us / 1e3 / peak_gb_s if peak_gb_s else None
    top = peak_gflop_s.get(dtype)
    return Roof(memory, flops / us / 1e3 / top if flops and top else None)
