"""Many connections at once.

Clients: each a process with a connection and small blocking adds, in C on the daemon's memory, in Python on CUDA tensors of torch.

Load: what one daemon on two processors serves to 1 to 256 connections, and what it does when more is asked for. The load comes from one
process on the same two processors, over plain sockets with prepared messages; beside the no-op stands a raw server that answers the same
bytes and does nothing else."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from time import monotonic_ns
from typing import Any

from support import memfd, raw

from ..children import Child, children
from ..context import Context, Skipped
from ..processors import two_processors
from ..record import Record, Summary
from . import add

Found = dict[str, Any]
ROUNDS = 3


def rates(found: Sequence[float], name: str | None = None) -> Summary:
    """The p99 is the slowest round."""
    return Summary(median(found), min(found), len(found), name)


# ---- clients ----

CLIENTS, TORCH_CLIENTS = (1, 4, 16, 64), (1, 4, 16, 32)
CLIENTS_MILLISECONDS = 500
FAIRNESS = 0.95
NOISE = 0.97  # a rate that is lower by less is the same rate


def round_of(clients: Sequence[Child], milliseconds: int) -> list[Found]:
    """Each client tells of its calls."""
    begin = monotonic_ns() + 20_000_000
    for client in clients:
        client.tell(f"[{begin}, {begin + milliseconds * 1_000_000}]")
    return [client.hear()["calls"] for client in clients]


def jain(rates: Sequence[float]) -> float:
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 0.0


def run_clients(context: Context, name: str) -> list[Record]:
    torch = name == "clients_torch"
    if torch and context.smoke:
        raise Skipped("the stand-in for torch is of one process")
    counts, path = TORCH_CLIENTS if torch else CLIENTS, context.gpu_daemon.socket_path
    in_c = [str(context.program("bench_calls")), "--client", "--socket", path]
    program = [sys.executable, "-m", "kopsbench.process", "client", path] if torch else in_c
    n_rounds, milliseconds = (1, 100) if context.smoke else (ROUNDS, CLIENTS_MILLISECONDS)
    found: dict[int, list[list[Found]]] = {count: [] for count in counts}
    with children(program, counts[-1], context.of_children()) as processes:
        for _ in range(n_rounds):
            for count, its in found.items():
                its.append(round_of(processes[:count], milliseconds))
    totals = {count: rates([sum(one["n"] for one in its) / milliseconds * 1e3 for its in of]) for count, of in found.items()}
    fairness = {count: rates([jain([one["n"] for one in its]) for its in of]) for count, of in found.items()}
    by_clients = {
        str(count): {
            "total_per_s": totals[count].p50,
            "jain": fairness[count].p99,
            "p50_us": median(one["p50"] for its in found[count] for one in its),
            "p99_us": median(one["p99"] for its in found[count] for one in its),
        }
        for count in counts
    }
    measured = (
        ("blocking Client.add(out=) of 1024 f32 torch CUDA tensors" if torch else "kops_run() of adds of 1024 f32 in the daemon's memory")
        + f", by processes that work over the same stretch of {milliseconds} ms; all {counts[-1]} are connected; medians of rounds"
    )
    records: list[Record] = []
    for count in counts[1:]:
        most = max((n for n in counts if n < count), key=lambda n: totals[n].p50)
        detail: dict[str, Any] = {
            "measured": measured,
            "p99": "the slowest round",
            "n": "rounds",
            "target_is": "never falls below that of any fewer; less than 3 % is noise",
            "by_clients": by_clients,
            **(context.python_link() if torch else {}),
        }
        peer = Summary(totals[most].p50, totals[most].p99, n_rounds, f"{most} client{'s' * (most > 1)}")
        records.append(Record(f"{name}_{count}_rate", "calls/s", "higher", totals[count], peer, detail, target=NOISE))
    for count in counts[1:] if not torch else ():
        detail = {"measured": f"{measured}; (Σ rate)² / (n Σ rate²)", "p99": "the worst round", "n": "rounds", "peer": "none: 1 is perfect"}
        records.append(Record(f"{name}_{count}_jain", "Jain's index", "higher", fairness[count], None, detail, FAIRNESS, absolute=True))
    return records


add("clients", run_clients, "clients", on_gpu=True, table=True, seconds=90)
add("clients_torch", run_clients, "clients_torch", on_gpu=True, table=True, seconds=150)

# ---- load ----

COUNTS, MILLISECONDS = (1, 4, 16, 64, 256), 1000
SATURATION_ROUNDS, SATURATION_CONNECTIONS, SATURATION_DEPTH = 9, 64, 8
HOLDS = 0.9
ELEMENTS = 16
WHAT = {"noop": "pings", "add": f"blocking adds of {ELEMENTS} f32 in shared memory"}
MSGID = 0xDEADBEEF  # which the load replaces
PING = raw.pack_request(MSGID, "ping", {})


@contextmanager
def daemon_on_two_processors(context: Context) -> Iterator[Any]:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, two_processors())  # for those who are started now
    try:
        with context.daemon("--set", "server.spin_us=0", cuda=False) as daemon:
            yield daemon
    finally:
        os.sched_setaffinity(0, allowed)


def run_load(context: Context, fds: list[int], requests: list[bytes], *arguments: Any) -> Found:
    prepared = b"".join(struct.pack("=II", fd, len(one)) + one for fd, one in zip(fds, requests, strict=True))
    how = ("--connections", len(fds), "--milliseconds", 300 if context.smoke else MILLISECONDS, *arguments)
    return context.run_program("bench_load", *how, socket=None, seconds=60, given=prepared, fds=fds)


def of_daemon(context: Context, daemon: Any, kind: str, count: int, *arguments: Any) -> Found:
    with ExitStack() as stack:
        links = [stack.enter_context(daemon.connect()) for _ in range(count)]
        shared, requests = [], [PING] * count
        if kind == "add":
            requests = []
            for link in links:
                shared.append(memfd.Shared(3 * 4 * ELEMENTS))
                buffer = link.register(shared[-1])
                a, b, out = (raw.tensor(buffer, [ELEMENTS], offset=4 * ELEMENTS * i) for i in range(3))
                requests.append(raw.pack_request(MSGID, "run", {"op": "add", "in": [a, b], "out": [out], "timing": False}))
        return run_load(context, [link.socket.fileno() for link in links], requests, *arguments)


def per_s(found: list[Found], name: str | None = None) -> Summary:
    return rates([its["per_s"] for its in found], name)


def latency(found: list[Found], statistic: str) -> float:
    return median(its["series"]["latency"][statistic] for its in found)


def run_counts(context: Context) -> list[Record]:
    ours: dict[tuple[str, int], list[Found]] = {(kind, count): [] for kind in WHAT for count in COUNTS}
    raw_server: dict[int, list[Found]] = {count: [] for count in COUNTS}
    with daemon_on_two_processors(context) as daemon:
        for _ in range(1 if context.smoke else ROUNDS):
            for (kind, count), its in ours.items():
                its.append(of_daemon(context, daemon, kind, count))
                if kind == "noop":
                    raw_server[count].append(run_load(context, [0] * count, [PING] * count, "--raw"))
    records = []
    for (kind, count), found in ours.items():
        detail = {
            "measured": f"{WHAT[kind]}, one under way on each connection, host backend, sockets, 2 processors for the daemon and the load"
            " together; medians of rounds",
            "p99": "the slowest round",
            "n": "rounds",
            "latency_p50_us": latency(found, "p50"),
            "latency_p99_us": latency(found, "p99"),
        }
        peer = None
        if kind == "noop":
            its = raw_server[count]
            peer = per_s(its, "raw epoll server, same bytes")
            detail["peer_latency_p99_us"] = latency(its, "p99")
        else:
            detail["peer"] = "none: a server that adds is what this is"
        records.append(Record(f"load_{kind}_{count}_connections", "requests/s", "higher", per_s(found), peer, detail))
    return records


def run_saturation(context: Context) -> list[Record]:
    """Twice as much is asked for as the daemon gives when each connection waits for answers."""
    records = []
    with daemon_on_two_processors(context) as daemon:
        for kind in WHAT:
            most: list[Found] = []
            over: list[Found] = []
            for _ in range(1 if context.smoke else SATURATION_ROUNDS):
                most.append(of_daemon(context, daemon, kind, SATURATION_CONNECTIONS, "--depth", SATURATION_DEPTH))
                over.append(of_daemon(context, daemon, kind, SATURATION_CONNECTIONS, "--rate", int(2 * most[-1]["per_s"])))
            detail = {
                "measured": "answers a second while twice as many requests a second are due, beside what the daemon gives at most; the load"
                " sends up to 4096 ahead on a connection, the rest waits in it",
                "p99": "the slowest round",
                "n": "rounds",
                "offered_per_s": median(its["offered_per_s"] for its in over),
                "unanswered": sum(its["unanswered"] for its in over),
                "errors": sum(its["errors"] for its in over),
            }
            peer = per_s(most, f"{SATURATION_DEPTH} under way on each of {SATURATION_CONNECTIONS} connections")
            records.append(Record(f"load_{kind}_twice_saturation", "requests/s", "higher", per_s(over), peer, detail, target=HOLDS))
    return records


add("load", run_counts, on_gpu=False, table=True, seconds=120)
add("load_saturation", run_saturation, on_gpu=False, table=True, seconds=90)
