"""One small blocking add on the GPU: what a caller pays for going through the daemon."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from time import perf_counter_ns

from ..context import Context, Skipped
from ..record import Record, Summary, summarise
from . import add, alternate

ELEMENTS = 1024
CLIENT_SPIN_US = 200


def run_c(context: Context, *, spin: bool) -> Record:
    program = context.program("bench_tiny_add")
    calls = max(context.calls, 200) * 5
    command = [
        str(program), "--socket", context.gpu_daemon.socket_path, "--blocks", str(context.blocks),
        "--calls", str(calls // context.blocks), "--elements", str(ELEMENTS),
        *(["--spin", str(CLIENT_SPIN_US)] if spin else []),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 77:
        raise Skipped(done.stderr.strip())
    if done.returncode != 0:
        raise RuntimeError(f"bench_tiny_add failed: {done.stderr}")
    numbers = json.loads(done.stdout)
    ours, peer = numbers["kops_add"], numbers["launch_sync"]
    return Record(
        "blocking_tiny_add_c_spin" if spin else "blocking_tiny_add_c",
        "us",
        "lower",
        Summary(ours["p50"], ours["p99"], ours["n"]),
        Summary(peer["p50"], peer["p99"], peer["n"], "in_process_launch_sync"),
        {
            "measured": f"kops_add() of {ELEMENTS} f32 in CUDA memory against event, launch, event,"
            " synchronise, elapsed time of an equal kernel in the calling process",
            "client_wait": f"spins up to {CLIENT_SPIN_US} us" if spin else "sleeps",
            "gpu_us_ours_p50": numbers["kops_add_gpu"]["p50"],
            "gpu_us_peer_p50": numbers["launch_sync_gpu"]["p50"],
        },
    )


def run_python(context: Context) -> Record:
    torch = context.torch
    client = context.gpu_client()
    a, b, out = (torch.ones(ELEMENTS, device="cuda") for _ in range(3))
    torch.cuda.synchronize()

    def ours(n: int) -> Iterable[float]:
        for _ in range(n):
            start = perf_counter_ns()
            client.add(a, b, out=out)
            yield (perf_counter_ns() - start) * 1e-3

    def peer(n: int) -> Iterable[float]:
        for _ in range(n):
            start = perf_counter_ns()
            torch.add(a, b, out=out)
            torch.cuda.synchronize()
            yield (perf_counter_ns() - start) * 1e-3

    our_times, peer_times = alternate(context, ours, peer, calls=context.calls * 2)
    return Record(
        "blocking_tiny_add_python",
        "us",
        "lower",
        summarise(our_times),
        summarise(peer_times, "torch.add + synchronize"),
        {"measured": f"Client.add(out=) of {ELEMENTS} f32 torch CUDA tensors against torch.add(out=) + synchronize"},
    )


add("blocking_tiny_add_c", lambda context: run_c(context, spin=False), on_gpu=True)
add("blocking_tiny_add_c_spin", lambda context: run_c(context, spin=True), on_gpu=True)
add("blocking_tiny_add_python", run_python, on_gpu=True)
