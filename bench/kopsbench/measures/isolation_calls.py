"""Calls of a daemon that keeps users' kernels apart, against those of one that does all GPU work itself. One daemon runs at
a time, since the second of two is slower whichever it is, and which of them goes first alternates."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from ..context import Context
from ..isolation.scene import Scene
from ..processors import two_processors
from ..record import Record, Summary, merge, summarise
from ..user_kernels import VECTOR_ADD
from . import add
from .blocking import ELEMENTS, timed, vectors
from .clients import COUNTS, NOISE
from .noop import summary
from .ordered import check, in_a_row
from .programs import check_program, define

MODES = ("user", "off")
ROUNDS, ROUNDS_2_CORES, ROUNDS_CLIENTS = 6, 4, 3
TARGET, TARGET_2_CORES = 1.05, 1.15
MORE_CLIENTS = {16: 1.2, 64: 1.2}  # how much more of their calls there are to be
MILLISECONDS = 500

Found = dict[str, Summary]

MEASURED = {
    "tiny_add_c": "kops_add() of 1024 f32 in CUDA memory, blocking",
    "tiny_add_python": "blocking Client.add(out=) of 1024 f32 torch CUDA tensors",
    "ordered_own": "kops_enqueue() in a row, each ordered on the client's stream, by their number",
    "ordered_batch": "the same in one batch",
    "ordered_chain": "launch, kops_enqueue(), launch, each reading what the last wrote, by the number of times",
    "program_20_c": "kops_program_run() of 20 adds of 1024 f32, blocking",
    "program_20_python": "run() of a program of 20 adds of 1024 f32 torch CUDA tensors, blocking",
    "op_kernel_op": "Client.add(out=), a kernel of the client's own, Client.add(out=), each blocking, the three together",
    "program_op_kernel_op": "run() of a program of the same three, blocking",
    "ordered_op_kernel_op": "the same three on the current stream, in a row, by the number of times",
}
UNDER_MPS = ("ordered_own", "ordered_batch", "ordered_chain")


@contextmanager
def on_two_cores() -> Iterator[None]:
    """For all threads of this process, and the programs that it starts."""
    before = os.sched_getaffinity(0)

    def put(cpus: set[int]) -> None:
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setaffinity(int(thread.name), cpus)

    put(two_processors())
    try:
        yield
    finally:
        put(before)


# ---- of one daemon ----


def of_programs(context: Context, socket: str) -> Found:
    """Of the programs in C."""
    smoke, mps = context.smoke, context.mps
    calls = 10 if smoke else 500
    n_rounds, ops = (2, 20) if smoke else (8, 2000) if mps else (5, 200)
    ordered = context.run_program("bench_ordered", "--rounds", n_rounds, "--ops", ops, socket=socket)
    found = {f"ordered_{name}": summary(ordered[name]) for name in ("own", "batch", "chain")}
    if mps:
        return found
    tiny = context.run_program("bench_tiny_add", "--blocks", 2, "--calls", calls, "--warmup", calls, socket=socket)
    program = context.run_program("bench_program", "--blocks", 2, "--calls", calls, socket=socket)
    return {**found, "tiny_add_c": summary(tiny["add"]), "program_20_c": summary(program["program"])}


def samples(context: Context, call: Callable[[], Any], n: int = 1000) -> Summary:
    n = 10 if context.smoke else n
    list(timed(call)(n // 5))
    return summarise(timed(call)(n))


def of_ops(context: Context, client: Any) -> Found:
    """Of Python calls of built-in ops."""
    a, b, out = vectors(context, 3)
    found = {"tiny_add_python": samples(context, lambda: client.add(a, b, out=out))}
    check(context, out, 3.0)
    b, x, y = vectors(context, 3)
    program = define(client, b, x, y)
    found["program_20_python"] = samples(context, program.run, 400)
    check_program(context, program, b, x)
    return found


def of_kernels(context: Context, blocking: Any, ordered: Any) -> Found:
    """Of Python calls of ops and a kernel: 1 + 2, + 2, + 2."""
    a, b, c, d, e = vectors(context, 5)

    def three(client: Any, kernel: Any) -> Callable[[], None]:
        def calls() -> None:
            client.add(a, b, out=c)
            kernel(d, c, b, ELEMENTS)
            client.add(d, b, out=e)

        return calls

    kernel = VECTOR_ADD.declare(blocking)
    calls = three(blocking, kernel)
    found = {"op_kernel_op": samples(context, calls)}
    check(context, e, 7.0)
    with blocking.program() as program:
        calls()
    found["program_op_kernel_op"] = samples(context, program.run)
    check(context, e, 7.0)
    if ordered is not None:
        in_row = in_a_row(context, 20 if context.smoke else 200, three(ordered, VECTOR_ADD.declare(ordered)))
        list(in_row(1))
        found["ordered_op_kernel_op"] = summarise(in_row(2 if context.smoke else 5))
        ordered.synchronize()
        check(context, e, 7.0)
    return found


def of_daemon(context: Context, isolate: str) -> Found:
    with Scene(context, isolate=isolate) as scene:
        scene.wait_for_work()
        socket = scene.daemon.socket_path
        found = of_programs(context, socket)
        if context.mps:
            return found
        with context.connect(socket) as client:
            found |= of_ops(context, client)
            with context.connect(socket, blocking=False) as ordered:
                found |= of_kernels(context, client, ordered if "ordered" in ordered.info.features else None)
    return found


# ---- of both ----


def in_turns(n_rounds: int, of_one: Callable[[str], Any]) -> dict[str, list[Any]]:
    """The result of each mode, round by round."""
    found: dict[str, list[Any]] = {mode: [] for mode in MODES}
    for turn in range(n_rounds):
        for mode in MODES if turn % 2 == 0 else reversed(MODES):
            found[mode].append(of_one(mode))
    return found


def compared(context: Context, prefix: str, n_rounds: int, target: float | None) -> list[Record]:
    found = in_turns(2 if context.smoke else n_rounds, partial(of_daemon, context))
    records = []
    for name in found["user"][0]:
        ours, peer = ([one[name] for one in found[mode]] for mode in MODES)
        records.append(
            Record(
                f"{prefix}_{name}",
                "us",
                "lower",
                merge(ours),
                merge(peer, "executors.isolate = off"),
                {
                    "measured": f"{MEASURED[name]}; executors.isolate = user against off",
                    "rounds": len(ours),
                    "p50_by_round": [one.p50 for one in ours],
                    "peer_p50_by_round": [one.p50 for one in peer],
                    "ratio_by_round": [one.p50 / other.p50 for one, other in zip(ours, peer, strict=True)],
                    **context.python_link(),
                },
                target=target,
            )
        )
    return records


def run(context: Context) -> list[Record]:
    return compared(context, "isolation_mps" if context.mps else "isolation", ROUNDS, TARGET)


def run_2_cores(context: Context) -> list[Record]:
    with on_two_cores():
        return compared(context, "isolation_2_cores", ROUNDS_2_CORES, TARGET_2_CORES)


# ---- many clients ----


def clients_of(context: Context, isolate: str) -> dict[int, dict[str, Any]]:
    milliseconds = 50 if context.smoke else MILLISECONDS
    with Scene(context, isolate=isolate) as scene:
        scene.wait_for_work()
        socket = scene.daemon.socket_path
        return {n: context.run_program("bench_clients", "--clients", n, "--milliseconds", milliseconds, socket=socket) for n in COUNTS}


def run_clients(context: Context) -> list[Record]:
    found = in_turns(2 if context.smoke else ROUNDS_CLIENTS, partial(clients_of, context))
    rates = {mode: {n: [one[n]["total_per_s"] for one in found[mode]] for n in COUNTS} for mode in MODES}
    sides = {
        mode: {n: merge([Summary(rate, rate, 1, max=rate) for rate in its], f"executors.isolate = {mode}") for n, its in by_count.items()}
        for mode, by_count in rates.items()
    }
    measured = (
        "kops_run() of an add of 1024 f32 by processes that start together, one connection each, over the same stretch of"
        f" {MILLISECONDS} ms; medians of rounds"
    )
    ours = {n: side.p50 for n, side in sides["user"].items()}
    records = [
        Record(
            f"isolation_clients_{n}_rate",
            "calls/s",
            "higher",
            sides["user"][n],
            sides["off"][n],
            {
                "measured": measured,
                "by_round": rates["user"][n],
                "peer_by_round": rates["off"][n],
                "jain": min(one[n]["jain"] for one in found["user"]),
                "p99_us": [one[n]["series"]["latency"]["p99"] for one in found["user"]],
                "max_us": max(one[n]["series"]["latency"]["max"] for one in found["user"]),
            },
            target=MORE_CLIENTS.get(n),
        )
        for n in COUNTS
    ]
    least = min(ours[n] / max(ours[fewer] for fewer in COUNTS if fewer < n) for n in COUNTS[1:])
    records.append(
        Record(
            "isolation_clients_never_fewer",
            "share",
            "higher",
            Summary(least, least, len(COUNTS) - 1),
            None,
            {"measured": f"{measured}; the least of: rate of n clients by the most of fewer clients", "target_is": "3 % is noise"},
            target=NOISE,
            absolute=True,
        )
    )
    return records


add("isolation_calls", run, on_gpu=True, seconds=300)
add("isolation_calls_2_cores", run_2_cores, on_gpu=True, seconds=240)
add("isolation_calls_mps", run, on_gpu=True, mps=True, seconds=240)
add("isolation_clients", run_clients, on_gpu=True, seconds=180)
