"""Many clients at once, each with a connection and small blocking adds on memory that the daemon owns."""

from __future__ import annotations

from statistics import median
from typing import Any

from ..context import Context
from ..record import Record, Summary
from . import add

COUNTS = (1, 4, 16, 64)
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


def run_host(context: Context) -> list[Record]:
    with context.daemon(cuda=False) as daemon:
        return run(context, "clients_host", daemon.socket_path)


add("clients", lambda c: run(c, "clients", c.gpu_daemon.socket_path), on_gpu=True, table=True, seconds=90)
add("clients_host", run_host, on_gpu=False, seconds=90)
