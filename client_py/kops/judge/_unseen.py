"""Inputs of a solution's timed launches: the solution has not seen them, in memory of their own."""

from __future__ import annotations

import math
import random
import threading
from collections import deque
from concurrent.futures import Future, wait
from statistics import median

from ._draws import Draw, draw, new_seed
from ._gpu import VARIED_BYTES, GpuRunner, ahead_of
from ._runner import Job, Runner
from ._shelf import Held, Image

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
