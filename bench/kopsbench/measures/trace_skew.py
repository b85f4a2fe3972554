"""Whether a trace that is torch's and kopsd's together shows kernels of both where they ran: of a kernel of torch's, one of the
daemon's and another of torch's, again and again on one stream. All of them note their times by the GPU's clock, which is one for
all processes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ..context import Context, Skipped
from ..record import Record, Summary, summarise
from ..user_kernels import kernel_client, torch_kernel
from . import add

TRIPLES, WARMUP = 300, 20
TARGET_US = 2.0
OURS, THEIRS = "note_times", "torch_times"
# Some us long, so that it has a length in the trace.
SOURCE = """extern "C" __global__ void note_times(long long *times, int at)
{
    long long begin, now;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begin < 5000);
    times[2 * at] = begin;
    times[2 * at + 1] = now;
}
"""
Launch = Callable[[Any, int], Any]
Span = tuple[float, float]  # begin and end, us


def torch_launch(context: Context) -> Launch:
    if context.smoke:
        launch: Launch = context.torch.note_times
        return launch
    kernel = torch_kernel(context.torch, SOURCE.replace(OURS, THEIRS), THEIRS)
    return lambda times, at: kernel((1, 1, 1), (1, 1, 1), (times, at))


def spans_of(times: Any) -> list[Span]:
    """What kernels have noted, in order."""
    found = [ns * 1e-3 for ns in times.tolist()]
    return list(zip(found[::2], found[1::2], strict=True))


def spans_in(trace: dict[str, Any], name: str, n: int) -> list[Span]:
    rows = [row for row in trace["traceEvents"] if row.get("cat") == "kernel" and name in row["name"]]
    if len(rows) != n:
        raise RuntimeError(f"the trace has {len(rows)} of {n} rows of {name}")
    return sorted((row["ts"], row["ts"] + row["dur"]) for row in rows)


@dataclass
class Found:
    """In order: of torch's kernels, two for one of the daemon's."""

    theirs: list[Span]
    ours: list[Span]
    theirs_on_gpu: list[Span]
    ours_on_gpu: list[Span]

    def skews(self, which: int) -> list[float]:
        """Of the begin (0) or end (1) of the daemon's kernel from the begin of torch's before it: trace against GPU, us."""
        found = []
        for i, (ours, ours_on_gpu) in enumerate(zip(self.ours, self.ours_on_gpu, strict=True)):
            in_trace = ours[which] - self.theirs[2 * i][0]
            found.append(in_trace - (ours_on_gpu[which] - self.theirs_on_gpu[2 * i][0]))
        return found

    def ordered(self) -> float:
        """The share of those that lie between torch's."""
        right = [
            self.theirs[2 * i][1] <= begin <= end <= self.theirs[2 * i + 1][0] for i, (begin, end) in enumerate(self.ours)
        ]
        return sum(right) / len(right)


def record_triples(context: Context, n: int) -> Found:
    from kops.profiler import profile  # not before the client's compiled part was chosen

    torch = context.torch
    theirs_on_gpu, ours_on_gpu = (torch.zeros((words,), dtype=torch.int64, device="cuda") for words in (4 * n, 2 * n))
    launch = torch_launch(context)
    with kernel_client(context, blocking=False) as client:
        if "ordered" not in client.info.features:
            raise Skipped("the daemon has no ordered calls")
        kernel = client.kernel(SOURCE, OURS, "inout long long *times, int at", grid=1, block=1)

        def triple(i: int) -> None:
            launch(theirs_on_gpu, 2 * i)
            kernel(ours_on_gpu, i)
            launch(theirs_on_gpu, 2 * i + 1)

        def finish() -> None:
            client.synchronize()
            torch.cuda.synchronize()

        for _ in range(WARMUP):
            triple(0)
        finish()
        with torch.profiler.profile() as theirs, profile(socket=context.gpu_daemon.socket_path, torch_profiler=theirs) as recorded:
            for i in range(n):
                triple(i)
            finish()
    with tempfile.TemporaryDirectory(prefix="kops-trace-") as folder:
        path = Path(folder, "trace.json")
        recorded.export_chrome_trace(path)
        trace = json.loads(path.read_text(encoding="utf-8"))
    in_trace = spans_in(trace, THEIRS, 2 * n), spans_in(trace, OURS, n)
    return Found(*in_trace, spans_of(theirs_on_gpu), spans_of(ours_on_gpu))


def run(context: Context) -> list[Record]:
    n = 5 if context.smoke else TRIPLES
    found = record_triples(context, n)
    skews, ends, share = found.skews(0), found.skews(1), found.ordered()
    name = f"trace_skew{'_mps' if context.mps else ''}"
    measured = (
        "one trace of torch.profiler and kops.profiler: kernel of torch.cuda._compile_kernel, kernel of the daemon, kernel of torch, on"
        f" one stream, {n} times in a row"
    )
    return [
        Record(
            name,
            "us",
            "lower",
            summarise(abs(skew) for skew in skews),
            None,
            {
                "measured": f"{measured}; how far the daemon's kernel begins from where it did after torch's by the GPU's clock",
                "signed_p50_us": median(skews),
                "end_abs_p50_us": median(abs(skew) for skew in ends),
                "end_signed_p50_us": median(ends),
                "end_max_us": max(abs(skew) for skew in ends),
            },
            target=TARGET_US,
            absolute=True,
            statistic="p99",
        ),
        Record(
            f"{name}_order",
            "share",
            "higher",
            Summary(share, share, n),
            None,
            {"measured": f"{measured}; those where the daemon's kernel lies between torch's in the trace"},
            target=1.0,
            absolute=True,
        ),
    ]


add("trace_skew", run, on_gpu=True)
add("trace_skew_mps", run, on_gpu=True, mps=True)
