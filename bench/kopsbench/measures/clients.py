"""Many clients at once, each a process with a connection and small blocking adds: in C on the daemon's memory, in Python on CUDA tensors
of torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import median
from time import monotonic_ns
from typing import Any

from ..children import Child, children
from ..context import Context, Skipped
from ..record import Record, Summary
from . import add

COUNTS, TORCH_COUNTS = (1, 4, 16, 64), (1, 4, 16, 32)
ROUNDS, MILLISECONDS = 3, 500
FAIRNESS = 0.95
NOISE = 0.97  # a rate that is lower by less is the same rate

Found = list[dict[str, float]]  # what the clients of a round said


def round_of(clients: Sequence[Child], milliseconds: int) -> Found:
    begin = monotonic_ns() + 20_000_000
    for client in clients:
        client.tell(f"[{begin}, {begin + milliseconds * 1_000_000}]")
    return [client.hear() for client in clients]


def jain(rates: Sequence[float]) -> float:
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 0.0


def run(context: Context, name: str) -> list[Record]:
    torch = name == "clients_torch"
    if torch and context.smoke:
        raise Skipped("the stand-in for torch is of one process")
    counts, path = TORCH_COUNTS if torch else COUNTS, context.gpu_daemon.socket_path
    program = [str(context.program("bench_client")), "--socket"] if not torch else [sys.executable, "-m", "kopsbench.torch_process"]
    n_rounds, milliseconds = (1, 100) if context.smoke else (ROUNDS, MILLISECONDS)
    found: dict[int, list[Found]] = {count: [] for count in counts}
    with children([*program, path], counts[-1], context.of_children()) as processes:
        for _ in range(n_rounds):
            for count, its in found.items():
                its.append(round_of(processes[:count], milliseconds))
    totals = {count: [sum(one["calls"] for one in its) / milliseconds * 1e3 for its in of] for count, of in found.items()}
    rates = {count: median(its) for count, its in totals.items()}
    fairness = {count: sorted(jain([one["calls"] for one in its]) for its in of) for count, of in found.items()}
    by_clients = {
        str(count): {
            "total_per_s": rates[count],
            "jain": fairness[count][0],
            "p50_us": median(one["p50_us"] for its in found[count] for one in its),
            "p99_us": median(one["p99_us"] for its in found[count] for one in its),
        }
        for count in counts
    }
    measured = (
        ("blocking Client.add(out=) of 1024 f32 torch CUDA tensors" if torch else "kops_run() of adds of 1024 f32 in the daemon's memory")
        + f", by processes that work over the same stretch of {milliseconds} ms; all {counts[-1]} are connected; medians of rounds"
    )
    records: list[Record] = []
    for count in counts[1:]:
        most = max((n for n in counts if n < count), key=lambda n: rates[n])
        detail: dict[str, Any] = {
            "measured": measured,
            "p99": "the slowest round",
            "n": "rounds",
            "target_is": "never falls below that of any fewer; less than 3 % is noise",
            "by_clients": by_clients,
            **(context.python_link() if torch else {}),
        }
        peer = Summary(rates[most], min(totals[most]), n_rounds, f"{most} client{'s' * (most > 1)}")
        ours = Summary(rates[count], min(totals[count]), n_rounds)
        records.append(Record(f"{name}_{count}_rate", "calls/s", "higher", ours, peer, detail, target=NOISE))
    for count in counts[1:] if not torch else ():
        detail = {"measured": f"{measured}; (Σ rate)² / (n Σ rate²)", "p99": "the worst round", "n": "rounds", "peer": "none: 1 is perfect"}
        ours = Summary(median(fairness[count]), fairness[count][0], n_rounds)
        records.append(Record(f"{name}_{count}_jain", "Jain's index", "higher", ours, None, detail, FAIRNESS, absolute=True))
    return records


add("clients", run, "clients", on_gpu=True, table=True, seconds=90)
add("clients_torch", run, "clients_torch", on_gpu=True, table=True, seconds=150)
