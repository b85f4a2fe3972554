"""One solution judged from its draws on: what is asked of a runner, and the verdict that comes of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .._companions import Stopwatch
from ._draws import Draw
from ._errors import Refused, TaskFault
from ._host import HostRunner
from ._rounds import check_cases
from ._runner import Runner
from ._sandbox import missing
from ._solution import Solution
from ._stop import Stop
from ._task import Case, Task
from ._verdict import Fault, Verdict

LOCATE_SECONDS = {"faulted": 20.0, "hangs": 2.0}  # of the interpreter, for one launch; an endless one takes all of it


@dataclass(eq=False)
class Job:
    """A solution on its way. `draws` are those of each case, the timed ones apart."""

    task: Task
    solution: Solution
    future: Any
    begun: float = field(default_factory=time.monotonic)
    draws: dict[Case, tuple[Draw, ...]] = field(default_factory=dict)
    more: Mapping[Case, tuple[Draw, ...]] = field(default_factory=dict)
    timed: tuple[Draw, ...] = ()
    flops: float | None = None  # of the timed case
    dtype: str = ""  # in which it is computed
    warnings: tuple[str, ...] = ()
    allocates: bool = True  # its kernels have a heap, as far as is known
    ahead: bool = False  # it counts as one whose draws are in memory
    kept: Callable[[], Sequence[Draw]] = lambda: ()  # more for its times, which were made for other solutions
    keep: Callable[[Draw], None] = lambda draw: None  # takes one that was made for its times, for later solutions
    work: Stopwatch = field(default_factory=Stopwatch)  # of the stages, without the queues between them
    spent: dict[str, float] = field(default_factory=dict)  # seconds by part

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Of the time in which nothing else is judged."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self.spent[name] = self.spent.get(name, 0.0) + time.monotonic() - begun

    def verdict(self, kind: str, text: str = "", **members: Any) -> Verdict:
        members["warnings"] = tuple(dict.fromkeys((*self.warnings, *members.get("warnings", ()))))
        return Verdict(kind, text, self.task.name, self.solution.name, seconds=time.monotonic() - self.begun, **members)


def _proven(task: Task, done: Sequence[str]) -> tuple[str, str]:
    """Kind and text where nothing is wrong in the cases that were run."""
    missing = [one for one in map(str, task.all_cases) if one not in done]
    if not missing:
        return "right", ""
    others = f"and {len(missing) - 1} more of its cases do" if len(missing) > 1 else "does"
    where = f"in the small cases that ran here: {'; '.join(done)}" if done else "since no case ran"
    left = f"The case {missing[0]} of the task {others} not run here: a judge with a GPU runs them all"
    return "unproven", f"nothing is wrong {where}. {left}"


def verdict_of(
    job: Job, make: Callable[[], Runner], timing: Callable[[Runner], Any] | None = None, prepare: Callable[[Runner], None] | None = None
) -> tuple[Verdict, bool]:
    """The verdict, and whether the runner's process is to be given up. `timing` answers the verdict's time, for a right solution;
    `prepare` is called for it before the last cases are run. Raises Gone."""
    runner: Runner | None = None
    done: list[str] = []
    lost = True
    try:
        with job.part("begin"):
            runner = make()
        with job.part("check"):
            groups = runner.at_once(job.task, job.draws)
            for i, cases in enumerate(groups, 1):
                if prepare is not None and i == len(groups):
                    prepare(runner)
                check_cases(job.task, runner, [(job.draws[case], job.more.get(case, ())) for case in cases])
                done += map(str, cases)
        found = timing(runner) if timing is not None else None
        lost = False
    except Refused as error:
        stop, lost = Stop("refused", error.message), False
    except TaskFault as error:
        stop, lost = Stop("no_verdict", error.message), False
    except Stop as error:
        stop, lost = error, error.kind in ("faulted", "hangs")
    else:
        members: dict[str, Any] = {"how": runner.how, "device": runner.device, "cases": tuple(done), "launches": runner.checked}
        members["warnings"] = runner.warnings
        if found is not None:
            members |= {"time": found.time, "warnings": (*runner.warnings, *found.warnings)}
        return job.verdict(*_proven(job.task, done), **members), False
    finally:
        if runner is not None:
            with job.part("end"):
                runner.close(lost)
    how: dict[str, Any] = {}
    if runner is not None:
        how = {"how": runner.how, "device": runner.device, "warnings": runner.warnings, "launches": runner.checked}
    return job.verdict(stop.kind, stop.text, cases=tuple(done), **how, **stop.members), stop.dirty


def located(job: Job, verdict: Verdict, draw: Draw, deadline: float) -> Verdict:
    """A fault on a GPU with its place, if the interpreter finds one in a small case: block, thread and line."""
    if missing():
        return verdict  # a stranger's code is not run here
    again = Job(job.task, job.solution, None, draws={draw.case: (draw, draw, draw)})
    found, _ = verdict_of(again, lambda: HostRunner(job.solution, min(LOCATE_SECONDS[verdict.kind], deadline)))
    if found.kind not in ("faulted", "hangs") or found.fault is None or verdict.fault is None:
        return verdict
    place: Fault = replace(found.fault, driver=verdict.fault.driver, kernel=found.fault.kernel or verdict.fault.kernel)
    return replace(verdict, fault=place, text=f"{verdict.text}. The interpreter, in the case {draw.case}: {place.text}")
