"""Load: what one daemon on two processors serves to 1 to 256 connections, and what it does when more is asked for.

The load comes from one process on the same two processors, over plain sockets with prepared messages; beside the no-op
stands a raw server that answers the same bytes and does nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from statistics import median
from typing import Any

from support import proc

from ..context import Context
from ..processors import two_processors
from ..record import Record, Summary
from . import add

COUNTS = (1, 4, 16, 64, 256)
ROUNDS, MILLISECONDS = 3, 1000
SATURATION_ROUNDS = 9
SATURATION_CONNECTIONS, SATURATION_DEPTH = 64, 8
HOLDS = 0.9
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")

Found = dict[str, Any]


def on_two_processors(context: Context, measure: Callable[[Context, Any], list[Record]]) -> list[Record]:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, two_processors())  # for those who are started now
    try:
        with context.daemon("--set", "server.spin_us=0", cuda=False) as daemon:
            return measure(context, daemon)
    finally:
        os.sched_setaffinity(0, allowed)


def one(context: Context, daemon: Any, *arguments: Any) -> Found:
    """What one run found, with the daemon's processor time for each request."""
    milliseconds = 300 if context.smoke else MILLISECONDS
    before = proc.cpu_ticks(daemon.pid)
    found = context.run_program("bench_load", "--milliseconds", milliseconds, *arguments, socket=daemon.socket_path, seconds=60)
    found["cpu_us"] = (proc.cpu_ticks(daemon.pid) - before) * TICK_US / max(found["sent"], 1)
    return found


def summary(found: list[Found], name: str | None = None) -> Summary:
    rates = [its["per_s"] for its in found]
    return Summary(median(rates), min(rates), len(rates), name)


def latency(found: list[Found], statistic: str) -> float:
    return median(its["series"]["latency"][statistic] for its in found)


def run_counts(context: Context, daemon: Any) -> list[Record]:
    ours: dict[tuple[str, int], list[Found]] = {}
    peer: dict[int, list[Found]] = {}
    for _ in range(1 if context.smoke else ROUNDS):
        for count in COUNTS:
            ours.setdefault(("noop", count), []).append(one(context, daemon, "--connections", count))
            peer.setdefault(count, []).append(one(context, daemon, "--connections", count, "--peer"))
            ours.setdefault(("add", count), []).append(one(context, daemon, "--connections", count, "--add"))
    what = {
        "noop": "pings",
        "add": "blocking adds of 16 f32 in shared memory",
    }
    return [
        Record(
            f"load_{kind}_{count}_connections",
            "requests/s",
            "higher",
            summary(found),
            summary(peer[count], "raw epoll server, same bytes") if kind == "noop" else None,
            {
                "measured": f"{what[kind]}, one under way on each connection, host backend, sockets, 2 processors for the"
                " daemon and the load together; medians of rounds",
                "p99": "the slowest round",
                "n": "rounds",
                "latency_p50_us": latency(found, "p50"),
                "latency_p99_us": latency(found, "p99"),
                "daemon_cpu_us_per_request": median(its["cpu_us"] for its in found),
                **(
                    {
                        "peer_latency_p99_us": latency(peer[count], "p99"),
                        "peer_cpu_us_per_request": median(i["peer_cpu_s"] * 1e6 / i["sent"] for i in peer[count]),
                    }
                    if kind == "noop"
                    else {"peer": "none: a server that adds is what this is"}
                ),
            },
        )
        for (kind, count), found in ours.items()
    ]


def run_saturation(context: Context, daemon: Any) -> list[Record]:
    """Twice as much is asked for as the daemon gives when each connection waits for answers."""
    connections = ("--connections", SATURATION_CONNECTIONS)
    records = []
    for kind, flags in (("noop", ()), ("add", ("--add",))):
        most, over = [], []
        for _ in range(1 if context.smoke else SATURATION_ROUNDS):
            most.append(one(context, daemon, *connections, *flags, "--depth", SATURATION_DEPTH))
            rate = int(2 * most[-1]["per_s"])
            over.append(one(context, daemon, *connections, *flags, "--rate", rate))
        records.append(
            Record(
                f"load_{kind}_twice_saturation",
                "requests/s",
                "higher",
                summary(over),
                summary(most, f"{SATURATION_DEPTH} under way on each of {SATURATION_CONNECTIONS} connections"),
                {
                    "measured": "answers a second while twice as many requests a second are due, beside what the daemon gives"
                    " at most; the load sends up to 4096 ahead on a connection, the rest waits in it",
                    "p99": "the slowest round",
                    "n": "rounds",
                    "offered_per_s": median(its["offered_per_s"] for its in over),
                    "unanswered": sum(its["unanswered"] for its in over),
                    "errors": sum(its["errors"] for its in over),
                    "daemon_cpu_us_per_request": median(its["cpu_us"] for its in over),
                },
                target=HOLDS,
            )
        )
    return records


add("load", lambda context: on_two_processors(context, run_counts), on_gpu=False, table=True, seconds=120)
add("load_saturation", lambda context: on_two_processors(context, run_saturation), on_gpu=False, table=True, seconds=90)
