"""Whether the times that the daemon tells of its kernels are true: `gpu_us` of replies, profiles and the statistics, against what
CUPTI records of the same calls in another daemon. One daemon runs at a time, and which of them goes first alternates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from support import backends

from ..context import Context
from ..record import Record, Summary, merge, summarise
from ..recorded import Recorder, executions, recorded_daemon
from ..works import Kernel, Kind, Op, Program, Work, gemm
from . import add

ROUNDS = 4
CALLS = 120  # of single calls, in all rounds together
REPEATS = 100  # of one request
SAMPLED_IN = 61  # calls, of which the daemon times one for the statistics
STATISTIC_CALLS, FEWEST_STATISTIC_CALLS = SAMPLED_IN * 32, SAMPLED_IN * 8
STATISTIC_US = 8e6  # GPU time for them, in all rounds together
WARM_US = 50e3
IDLE_S = 100e-6
PEER = "CUPTI's records in another daemon"
SETTINGS = ("kernels.user_kernels=all",)


@dataclass(frozen=True)
class Case:
    title: str
    us: float  # about how long it takes on an H200
    kind: Kind


@dataclass(frozen=True)
class Mode:
    """A way to learn of a time, and how far it may be off: below 20 us, and from there on in parts of it."""

    what: str
    most_us: float
    most_part: float

    def bound(self, us: float) -> float:
        return self.most_us if us <= 20 else us * self.most_part


CLOSE = {"most_us": 0.5, "most_part": 0.02}
MODES = {
    "single": Mode("a call with timing=True, some 100 us after the one before", 1.0, 0.03),
    "exact": Mode('a call with timing="exact", some 100 us after the one before', **CLOSE),
    "repeated": Mode(f"a profile of {REPEATS} executions in one request", **CLOSE),
    "statistics_p50": Mode("the median of the row of stats() after calls without timing", **CLOSE),
    "statistics_mean": Mode("the mean of the row of stats() after calls without timing", **CLOSE),
}
SIZES = {"1k": 1 << 10, "1m": 1 << 20, "16m": 1 << 24, "256m": 1 << 28}
ADDS = {"1k": 1.0, "1m": 2.6, "16m": 48.0, "256m": 740.0}
ELEMENTWISE = {
    **{f"add_{size}": Case(f"add of {size.upper()} f32", us, Op("add", (SIZES[size],))) for size, us in ADDS.items()},
    **{
        f"square_{size}": Case(f"square of {size.upper()} f32", us, Op("square", (SIZES[size],), inputs=1))
        for size, us in (("1k", 1.0), ("1m", 2.2))
    },
}
GEMM = {
    "gemm_f32_64": Case("gemm 64³ f32", 3.0, gemm(64)),
    "gemm_tiled_512": Case("gemm 512³ f32, the daemon's own tiled kernel", 30.0, gemm(512, variant="tiled")),
    "gemm_bf16_512": Case("gemm 512³ bf16", 6.0, gemm(512, "bf16")),
    "gemm_bf16_1024": Case("gemm 1024³ bf16", 9.0, gemm(1024, "bf16")),
    "gemm_bf16_4096": Case("gemm 4096³ bf16", 190.0, gemm(4096, "bf16")),
    "gemm_f32_4096": Case("gemm 4096³ f32", 2.8e3, gemm(4096)),
    "gemm_f32_8192": Case("gemm 8192³ f32", 22e3, gemm(8192)),
}
KERNELS = {
    "kernel_1k": Case("a user's vector_add of 1K f32", 1.0, Kernel(SIZES["1k"])),
    "kernel_36m": Case("a user's vector_add of 36M f32", 100.0, Kernel(36 << 20)),
    "program_20": Case("a program of 20 adds of 1K f32", 25.0, Program(SIZES["1k"])),
}
SMOKE = {
    "add_1k": ELEMENTWISE["add_1k"],
    "gemm_f32_64": GEMM["gemm_f32_64"],
    "kernel_1k": KERNELS["kernel_1k"],
    "program_20": KERNELS["program_20"],
}


@dataclass
class Found:
    """Of one case in one mode, on one side: samples of all rounds, or for the statistics one summary a round."""

    samples: list[float] = field(default_factory=list)
    rounds: list[Summary] = field(default_factory=list)
    timers: set[str] = field(default_factory=set)

    def summary(self, name: str | None = None) -> Summary:
        return merge(self.rounds, name) if self.rounds else summarise(self.samples, name)


class Truth(dict[tuple[str, str], Found]):
    """By case and mode."""

    def __missing__(self, key: tuple[str, str]) -> Found:
        return self.setdefault(key, Found())


# ---- one case on one daemon ----


class Calls:
    """How often, in one round."""

    def __init__(self, context: Context, us: float) -> None:
        rounds = 2 if context.smoke else ROUNDS
        self.rounds = rounds
        self.single = 3 if context.smoke else -(-CALLS // rounds)
        self.repeats = 5 if context.smoke else REPEATS
        statistic = max(FEWEST_STATISTIC_CALLS, min(STATISTIC_CALLS, round(STATISTIC_US / us)))
        self.statistic = 2 * SAMPLED_IN if context.smoke else -(-statistic // rounds)
        self.warming = 2 if context.smoke else int(min(2000, max(10, WARM_US / us)))


def warm(work: Work, calls: Calls) -> None:
    """The clocks rise when the GPU has work."""
    work.repeat(calls.warming, 1)


def spaced(work: Work, timing: Any, n: int) -> Iterator[Any]:
    for _ in range(n):
        yield work.timed(timing)
        time.sleep(IDLE_S)


def row_of(client: Any, work: Work, n: int) -> dict[str, Any]:
    """The statistics of n calls since the last reset, when all of their times have come."""
    before: dict[str, Any] = {}
    while True:
        rows = [row for row in client.stats()["ops"] if row["op"] == work.row and row["count"] >= n]
        found = dict(rows[0].get("exec_us", {})) if rows else {}
        if found and found == before:
            return found
        before = found
        time.sleep(0.02)


def ours(client: Any, name: str, work: Work, calls: Calls, found: Truth) -> None:
    warm(work, calls)
    for mode, timing in (("single", True), ("exact", "exact")):
        for timings in spaced(work, timing, calls.single):
            found[name, mode].samples.append(timings.exec_us)
            found[name, mode].timers.add(timings.timer)
        warm(work, calls)
    found[name, "repeated"].samples += work.repeat(0, calls.repeats)
    if not work.row:
        return
    warm(work, calls)
    client.stats(reset=True)
    for _ in range(calls.statistic):
        work.call(False)
    row = row_of(client, work, calls.statistic)
    n = calls.statistic // SAMPLED_IN
    found[name, "statistics_p50"].rounds.append(Summary(row["p50"], row["p99"], n, max=row["max"]))
    found[name, "statistics_mean"].rounds.append(Summary(row["mean"], row["p99"], n, max=row["max"]))


def peers(recorder: Recorder, name: str, work: Work, calls: Calls, found: Truth) -> None:
    """The same calls; where ours has no event and no stamp on the GPU, since CUPTI tells its times, none here either."""
    warm(work, calls)
    for mode, timing in (("single", True), ("exact", False)):
        recorder.new()
        told = [getattr(one, "exec_us", None) for one in spaced(work, timing, calls.single)]
        found[name, mode].samples += executions(recorder.new(), calls.single)
        if timing:
            found[name, f"{mode}_told"].samples += told
        warm(work, calls)
    recorder.new()
    work.repeat(calls.repeats, 1)  # what warms up is not timed, and one that is
    found[name, "repeated"].samples += executions(recorder.new(), calls.repeats + 1)[:-1]
    if not work.row:
        return
    warm(work, calls)
    recorder.new()
    for _ in range(calls.statistic):
        work.call(False)
    samples = executions(recorder.new(), calls.statistic)
    one = summarise(samples)
    found[name, "statistics_p50"].rounds.append(one)
    found[name, "statistics_mean"].rounds.append(Summary(fmean(samples), one.p99, one.n, max=one.max))


# ---- both daemons, in turns ----


@contextmanager
def our_daemon(context: Context) -> Iterator[str]:
    settings = [*SETTINGS, *([f"executors.cupti={backends.standin_cupti()}"] if context.smoke else [])]
    with context.daemon(*(word for setting in settings for word in ("--set", setting)), cuda=True) as daemon:
        yield daemon.socket_path


def on_each(context: Context, client: Any, cases: dict[str, Case], measure: Callable[[str, Work, Calls], None]) -> None:
    for name, case in cases.items():
        measure(name, case.kind.ready(context, client), Calls(context, case.us))
        context.torch.cuda.empty_cache()
        client.trim()


def one_round(context: Context, cases: dict[str, Case], peer: bool, found: Truth) -> None:
    if not peer:
        with our_daemon(context) as socket, context.connect(socket) as client:
            on_each(context, client, cases, lambda name, work, calls: ours(client, name, work, calls, found))
        return
    with recorded_daemon(context, SETTINGS) as (socket, recorder), context.connect(socket) as client:
        on_each(context, client, cases, lambda name, work, calls: peers(recorder, name, work, calls, found))


def compared(name: str, case: Case, mode_name: str, our: Truth, its: Truth) -> Record:
    mode, key = MODES[mode_name], (name, mode_name)
    peer = its[key].summary(PEER)
    told = its.get((name, f"{mode_name}_told"))
    return Record(
        f"truth_{name}_{mode_name}",
        "us",
        "same",
        our[key].summary(),
        peer,
        {
            "measured": f"{case.title}: {mode.what}; against CUPTI's records of the same calls in a daemon that does not use CUPTI",
            "title": case.title,
            "mode": mode_name,
            **({"timer": ", ".join(sorted(our[key].timers))} if our[key].timers else {}),
            **({"peer_p50_by_round": [one.p50 for one in its[key].rounds]} if its[key].rounds else {}),
            **({"p50_by_round": [one.p50 for one in our[key].rounds]} if our[key].rounds else {}),
            **({"told_by_the_recorded_daemon_p50_us": summarise(told.samples).p50} if told else {}),
        },
        target=mode.bound(peer.p50),
    )


def run(context: Context, cases: dict[str, Case]) -> list[Record]:
    _ = context.torch  # its context is there before the daemons measure what events say too much
    our, its = Truth(), Truth()
    for turn in range(2 if context.smoke else ROUNDS):
        for peer in (False, True) if turn % 2 == 0 else (True, False):
            one_round(context, cases, peer, its if peer else our)
    return [compared(name, cases[name], mode, our, its) for name in cases for mode in MODES if (name, mode) in our]


def parts(context: Context, cases: dict[str, Case]) -> dict[str, Case]:
    return {name: case for name, case in cases.items() if not context.smoke or name in SMOKE}


GROUPS: Sequence[tuple[str, dict[str, Case], float]] = (
    ("truth_elementwise", ELEMENTWISE, 300),
    ("truth_gemm", GEMM, 420),
    ("truth_kernels", KERNELS, 300),
)
for _name, _cases, _seconds in GROUPS:
    add(_name, lambda c, cases=_cases: run(c, parts(c, cases)), on_gpu=True, seconds=_seconds)
