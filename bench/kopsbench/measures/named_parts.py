"""How much of a blocking call's time the caller is told of by name: the parts of its times against the wall clock around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from ..context import Context
from ..record import Record, Summary, summarise
from ..user_kernels import kernel_client
from ..works import Kernel, Kind, Op, Work, gemm
from . import add
from .blocking import ELEMENTS

TARGET = 0.95
PARTS = ("send", "recv_to_start", "wait", "gpu", "end", "reply")
CALLS, WARMUP = 1000, 200
LONG_CALLS, LONG_WARMUP = 300, 50  # of those that take longer


@dataclass(frozen=True)
class Case:
    title: str
    kind: Kind
    program: tuple[Any, ...]  # the same for bench_parts
    long: bool = False

    def counts(self, context: Context) -> tuple[int, int]:
        """Calls, and those before them."""
        if context.smoke:
            return 5, 2
        return (LONG_CALLS, LONG_WARMUP) if self.long else (CALLS, WARMUP)


def gemm_case(n: int, *, long: bool = False) -> Case:
    return Case(f"gemm {n}³ bf16", gemm(n, "bf16"), ("--work", "gemm", "--dtype", "bf16", "--elements", n), long)


def cases(smoke: bool) -> dict[str, Case]:
    return {
        "add": Case(f"add of {ELEMENTS} f32", Op("add", (ELEMENTS,)), ("--work", "add", "--elements", ELEMENTS)),
        "gemm_1024": gemm_case(16 if smoke else 1024),
        "gemm_4096": gemm_case(32 if smoke else 4096, long=True),
        "kernel": Case(f"a user's vector_add of {ELEMENTS} f32", Kernel(ELEMENTS), ("--work", "kernel", "--elements", ELEMENTS)),
    }


def record(context: Context, how: str, title: str, series: dict[str, Summary], detail: dict[str, Any]) -> Record:
    """Of series in microseconds, and of the per cent that have no name."""
    unnamed = series["unnamed"]
    share, tail = 1 - unnamed.p50 / 100, 1 - unnamed.p99 / 100
    return Record(
        f"named_parts_{'mps_' if context.mps else ''}{how}",
        "share",
        "higher",
        Summary(share, tail, unnamed.n),
        None,
        {
            "measured": f"blocking {title}: send_us + recv_to_start_us + wait_us + gpu_us + end_us + reply_us by the time around the call",
            "p99": "of 100 calls the one with the smallest part that has a name",
            "wall_p50_us": series["wall"].p50,
            **{f"{part}_p50_us": series[part].p50 for part in PARTS},
            **{f"{part}_p99_us": series[part].p99 for part in PARTS},
            **detail,
        },
        target=TARGET,
        absolute=True,
    )


# ---- from C ----


def of_program(context: Context, case: Case) -> dict[str, Summary]:
    calls, warmup = case.counts(context)
    found = context.run_program("bench_parts", *case.program, "--calls", calls, "--warmup", warmup, socket=context.gpu_daemon.socket_path)
    return {name: Summary(one["p50"], one["p99"], one["n"]) for name, one in found.items()}


def run_c(context: Context) -> list[Record]:
    return [
        record(context, f"c_{name}", f"{case.title}, from C in memory of the daemon", of_program(context, case), {})
        for name, case in cases(context.smoke).items()
    ]


# ---- from Python ----


def of_calls(work: Work, n: int, before: Callable[[], Any] | None) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in (*PARTS, "wall", "unnamed")}
    for _ in range(n):
        if before is not None:
            before()
        start = perf_counter_ns()
        timings = work.timed(True)
        wall = (perf_counter_ns() - start) * 1e-3
        named = 0.0
        for part in PARTS:
            us = getattr(timings, f"{part}_us") or 0.0
            found[part].append(us)
            named += us
        found["wall"].append(wall)
        found["unnamed"].append(100 * abs(wall - named) / wall)
    return found


def run_python(context: Context) -> list[Record]:
    torch = context.torch
    own = torch.full((ELEMENTS,), 0.0, device="cuda")

    def own_kernel() -> None:
        """The GPU has to turn from this process's context to the daemon's."""
        torch.add(own, own, out=own)
        torch.cuda.synchronize()

    ways = (("", "", None), ("_after_torch", ", each after a kernel of the caller's own context", own_kernel))
    records = []
    with kernel_client(context) as client:
        for name, case in cases(context.smoke).items():
            work = case.kind.ready(context, client)
            calls, warmup = case.counts(context)
            for suffix, title, before in ways:
                of_calls(work, warmup, before)
                series = {part: summarise(samples) for part, samples in of_calls(work, calls, before).items()}
                what = f"{case.title}, torch CUDA tensors, from Python{title}"
                records.append(record(context, f"python_{name}{suffix}", what, series, context.python_link()))
    return records


for _mps in (False, True):
    _prefix = "named_parts_mps" if _mps else "named_parts"
    add(f"{_prefix}_c", run_c, on_gpu=True, mps=_mps)
    add(f"{_prefix}_python", run_python, on_gpu=True, mps=_mps)
