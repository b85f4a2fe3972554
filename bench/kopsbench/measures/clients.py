"""Many clients at once, each with a connection and small blocking adds on memory that the daemon owns, or on its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from time import monotonic_ns
from typing import IO, Any

from ..context import Context, Skipped
from ..record import Record, Summary
from . import add

COUNTS = (1, 4, 16, 64)
TORCH_COUNTS = (1, 4, 16, 32)
ROUNDS, MILLISECONDS = 3, 500
FAIRNESS = 0.95
NOISE = 0.97  # a rate that is lower by less is the same rate


def found_by(context: Context, socket: str) -> dict[int, list[dict[str, Any]]]:
    """What each number of clients found, in rounds."""
    found: dict[int, list[dict[str, Any]]] = {count: [] for count in COUNTS}
    for _ in range(2 if context.smoke else ROUNDS):
        for count, its in found.items():
            its.append(
                context.run_program(
                    "bench_clients",
                    "--clients",
                    count,
                    "--milliseconds",
                    50 if context.smoke else MILLISECONDS,
                    socket=socket,
                )  # fmt: skip
            )
    return found


def run(context: Context, prefix: str, socket: str) -> list[Record]:
    found = found_by(context, socket)
    totals = {count: [one["total_per_s"] for one in its] for count, its in found.items()}
    rates = {count: median(its) for count, its in totals.items()}
    measured = (
        "kops_run() of an add of 1024 f32 by processes that start together, one connection each, over the same stretch of"
        f" {MILLISECONDS} ms; medians of rounds"
    )
    by_clients = {
        str(count): {
            "total_per_s": rates[count],
            "jain": min(one["jain"] for one in its),
            "p50_us": median(one["series"]["latency"]["p50"] for one in its),
            "p99_us": median(one["series"]["latency"]["p99"] for one in its),
        }
        for count, its in found.items()
    }
    records = []
    for before, count in zip(COUNTS, COUNTS[1:], strict=False):
        most = max(rates[c] for c in COUNTS if c < count)
        records.append(
            Record(
                f"{prefix}_{count}_rate",
                "calls/s",
                "higher",
                Summary(rates[count], min(totals[count]), len(totals[count])),
                Summary(rates[before], min(totals[before]), len(totals[before]), f"{before} client{'s' * (before > 1)}"),
                {
                    "measured": measured,
                    "p99": "the slowest round",
                    "n": "rounds",
                    "to_one_client": rates[count] / rates[1],
                    "to_the_most_of_fewer": rates[count] / most,
                    "target_is": "never falls; less than 3 % is noise",
                    **({"by_clients": by_clients} if count == COUNTS[-1] else {}),
                },
                target=NOISE,
            )
        )
    for count in COUNTS[1:]:
        fairness = sorted(one["jain"] for one in found[count])
        records.append(
            Record(
                f"{prefix}_{count}_jain",
                "Jain's index",
                "higher",
                Summary(median(fairness), fairness[0], len(fairness)),
                None,
                {
                    "measured": f"{measured}; (Σ rate)² / (n Σ rate²)",
                    "p99": "the worst round",
                    "n": "rounds",
                    "peer": "none: 1 is perfect",
                    "slowest_client_per_s": min(min(one["rates"]) for one in found[count]),
                    "fastest_client_per_s": max(max(one["rates"]) for one in found[count]),
                },
                target=FAIRNESS,
                absolute=True,
            )
        )
    return records


@contextmanager
def torch_clients(context: Context, most: int) -> Iterator[list[tuple[IO[str], IO[str]]]]:
    """What so many processes read and write, once all are ready."""
    command = [sys.executable, "-m", "kopsbench.torch_process", context.gpu_daemon.socket_path]
    with ExitStack() as stack:
        processes = []
        for _ in range(most):
            process = subprocess.Popen(
                command, env=context.of_children(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )  # fmt: skip
            stack.callback(process.wait)
            assert process.stdin and process.stdout
            stack.callback(process.stdin.close)
            processes.append((process.stdin, process.stdout))
        for _, out in processes:
            if out.readline() != "ready\n":
                raise RuntimeError("a client did not get ready")
        yield processes


def round_of(processes: list[tuple[IO[str], IO[str]]]) -> list[dict[str, float]]:
    begin = monotonic_ns() + 20_000_000
    for said, _ in processes:
        said.write(f"[{begin}, {begin + MILLISECONDS * 1_000_000}]\n")
        said.flush()
    return [json.loads(out.readline()) for _, out in processes]


def run_torch(context: Context) -> list[Record]:
    if context.smoke:
        raise Skipped("the stand-in for torch is of one process")
    found: dict[int, list[list[dict[str, float]]]] = {count: [] for count in TORCH_COUNTS}
    with torch_clients(context, TORCH_COUNTS[-1]) as processes:
        for _ in range(ROUNDS):
            for count, its in found.items():
                its.append(round_of(processes[:count]))
    totals = {n: [sum(one["calls"] for one in its) / MILLISECONDS * 1e3 for its in rounds] for n, rounds in found.items()}
    rates = {count: median(its) for count, its in totals.items()}
    records = []
    for count in TORCH_COUNTS:
        fewer = [n for n in TORCH_COUNTS if n < count]
        most = max(fewer, key=lambda n: rates[n]) if fewer else None
        peer = Summary(rates[most], min(totals[most]), ROUNDS, f"{most} client{'s' * (most > 1)}") if most else None
        detail = {
            "measured": "Client.add(out=) of 1024 f32 torch CUDA tensors, blocking, by processes that work over the same stretch of"
            f" {MILLISECONDS} ms; all {TORCH_COUNTS[-1]} are connected; medians of rounds",
            "p99": "the slowest round",
            "n": "rounds",
            "p50_us": median(one["p50_us"] for its in found[count] for one in its),
            "p99_us": median(one["p99_us"] for its in found[count] for one in its),
            "target_is": "never falls below that of any fewer; less than 3 % is noise",
            **context.python_link(),
        }
        mine = Summary(rates[count], min(totals[count]), ROUNDS)
        records.append(Record(f"clients_torch_{count}_rate", "calls/s", "higher", mine, peer, detail, target=NOISE if peer else None))
    return records


def run_host(context: Context) -> list[Record]:
    with context.daemon(cuda=False) as daemon:
        return run(context, "clients_host", daemon.socket_path)


add("clients", lambda c: run(c, "clients", c.gpu_daemon.socket_path), on_gpu=True, table=True, seconds=90)
add("clients_torch", run_torch, on_gpu=True, table=True, seconds=150)
add("clients_host", run_host, on_gpu=False, seconds=90)
