"""What times cost: rates of a daemon as it is by default, timed, against those of one that cannot use CUPTI, untimed, of which one runs
at a time and which goes first alternates; and what a caller in Python pays for the times of its own blocking call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..context import Context
from ..record import Record, Summary, merge
from ..user_kernels import VECTOR_ADD
from . import add
from .common import ELEMENTS, beside, client_with, rounds, timed, vectors

DAEMON_ROUNDS, ROUNDS = 6, 8
KERNELS = ("--set", "kernels.user_kernels=all")
SIDES = {"timed": KERNELS, "untimed": (*KERNELS, "--set", "executors.cupti=off")}
TARGETS = {"tiny": 0.85, "50us": 0.99}
CALLS = {"tiny": 2000, "50us": 400}
PYTHON_TARGET = 1.15
# Work, length (a few or about 50 µs on an H200), title, size, further options
CASES = [
    ("add", "tiny", "add of {} f32", 1024),
    ("add", "50us", "add of {} f32", 20_000_000),
    ("gemm", "tiny", "gemm of {}³, bf16", 256, "--bf16"),
    ("gemm", "50us", "gemm of {}³, bf16", 2560, "--bf16"),
    ("kernel", "tiny", "a user's vector_add of {} f32", 1024),
    ("kernel", "50us", "a user's vector_add of {} f32", 18_000_000),
]


def rates_of_a_daemon(context: Context, side: str) -> list[Summary]:
    """One for each case."""
    found = []
    with context.daemon(*SIDES[side], cuda=True) as daemon:
        for work, takes, _, size, *more in CASES:
            elements, n_rounds, calls = (16, 2, 20) if context.smoke else (size, ROUNDS, CALLS[takes])
            how = (*more, *(["--untimed"] if side == "untimed" else []), "--elements", elements, "--rounds", n_rounds, "--calls", calls)
            series = context.run_program("bench_calls", "--work", work, *how, socket=daemon.socket_path)["calls"]
            found.append(Summary(1e6 / series["p50"], 1e6 / series["p99"], series["n"]))
    return found


def run_off(context: Context) -> list[Record]:
    found: dict[str, list[list[Summary]]] = {side: [] for side in SIDES}
    for turn in range(2 if context.smoke else DAEMON_ROUNDS):
        for side in SIDES if turn % 2 == 0 else reversed(SIDES):
            found[side].append(rates_of_a_daemon(context, side))
    records = []
    for i, (work, takes, title, size, *_) in enumerate(CASES):
        ours, peer = ([one[i] for one in found[side]] for side in SIDES)
        detail = {
            "measured": f"{title.format(size)}, 32 requests under way, rounds of {CALLS[takes]}; with timing"
            " in a daemon as it is by default, without in one that cannot use CUPTI",
            "n": "rounds",
            "p50_by_daemon": [one.p50 for one in ours],
            "peer_p50_by_daemon": [one.p50 for one in peer],
        }
        sides = merge(ours), merge(peer, "timing: false, executors.cupti = off")
        records.append(Record(f"timing_off_{work}_{takes}", "calls/s", "higher", *sides, detail, target=TARGETS[takes]))
    return records


def calls_of(context: Context, client: Any) -> dict[str, tuple[str, Callable[[Any], Any]]]:
    """Blocking calls on torch's CUDA tensors, of a `timing`, and what they are."""
    torch = context.torch
    a, b, out = vectors(context, 3)
    n = 16 if context.smoke else 1024
    # The stand-in for torch makes ones, all of them f32.
    x, y, z = (torch.full((n, n), 1.0) if context.smoke else torch.rand(n, n, device="cuda").bfloat16() for _ in range(3))
    torch.cuda.synchronize()
    kernel = VECTOR_ADD.declare(client)
    return {
        "add": (f"add of {ELEMENTS} f32", lambda timing: client.add(a, b, out=out, blocking=True, timing=timing)),
        "gemm": (f"gemm of {n}³, bf16", lambda timing: client.gemm(x, y, out=z, blocking=True, timing=timing)),
        "kernel": (f"a user's vector_add of {ELEMENTS} f32", lambda timing: kernel(out, a, b, ELEMENTS, blocking=True, timing=timing)),
    }


def run_python(context: Context) -> list[Record]:
    records = []
    with client_with(context, "kernels") as client:
        for name, (title, call) in calls_of(context, client).items():
            found = call(True)
            if not (found[1] if isinstance(found, tuple) else found).total_us:
                raise RuntimeError(f"{title}: a timed call has no times")
            sides = [timed(lambda it=call, timing=timing: it(timing)) for timing in (True, False)]  # type: ignore[misc]
            ours, peer = rounds(context, sides, calls=context.calls * 5)
            measured = f"blocking {title}, torch CUDA tensors, with timing=True, in turns"
            record = beside(f"timing_python_{name}", ours, (peer, "timing=False"), measured, PYTHON_TARGET, **context.python_link())
            records.append(record)
    return records


add("timing_off", run_off, on_gpu=True, table=True, seconds=300)
add("timing_python", run_python, on_gpu=True, table=True)
