"""Load: what one daemon on two processors serves to 1 to 256 connections, and what it does when more is asked for.

The load comes from one process on the same two processors, over plain sockets with prepared messages; beside the no-op
stands a raw server that answers the same bytes and does nothing else."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from support import memfd, raw

from ..context import Context
from ..processors import processor_ns, two_processors
from ..record import Record, Summary
from . import add

COUNTS = (1, 4, 16, 64, 256)
ROUNDS, MILLISECONDS = 3, 1000
SATURATION_ROUNDS, SATURATION_CONNECTIONS, SATURATION_DEPTH = 9, 64, 8
HOLDS = 0.9
ELEMENTS = 16
WHAT = {"noop": "pings", "add": f"blocking adds of {ELEMENTS} f32 in shared memory"}
MSGID = 0xDEADBEEF  # which the load replaces

Found = dict[str, Any]


@contextmanager
def daemon_on_two_processors(context: Context) -> Iterator[Any]:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, two_processors())  # for those who are started now
    try:
        with context.daemon("--set", "server.spin_us=0", cuda=False) as daemon:
            yield daemon
    finally:
        os.sched_setaffinity(0, allowed)


def run_load(context: Context, ends: list[socket.socket], requests: list[bytes], pid: int, *arguments: Any) -> Found:
    """What one run found, with the processor time of the server for each request."""
    prepared = b"".join(struct.pack("=II", end.fileno(), len(one)) + one for end, one in zip(ends, requests, strict=True))
    how = ("--connections", len(ends), "--milliseconds", 300 if context.smoke else MILLISECONDS, *arguments)
    before = processor_ns(pid)
    found = context.run_program("bench_load", *how, socket=None, seconds=60, given=prepared, fds=[end.fileno() for end in ends])
    found["cpu_us"] = (processor_ns(pid) - before) * 1e-3 / max(found["sent"], 1)
    return found


def one(context: Context, daemon: Any, kind: str, count: int, *arguments: Any) -> Found:
    with ExitStack() as stack:
        links = [stack.enter_context(daemon.connect()) for _ in range(count)]
        request, shared = raw.pack_request(MSGID, "ping", {}), []
        requests = [request] * count
        if kind == "add":
            requests = []
            for link in links:
                shared.append(memfd.Shared(3 * 4 * ELEMENTS))
                buffer = link.register(shared[-1])
                a, b, out = (raw.tensor(buffer, [ELEMENTS], offset=4 * ELEMENTS * i) for i in range(3))
                requests.append(raw.pack_request(MSGID, "run", {"op": "add", "in": [a, b], "out": [out], "timing": False}))
        return run_load(context, [link.socket for link in links], requests, daemon.pid, *arguments)


def of_raw_server(context: Context, count: int) -> Found:
    pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(count)]
    far = [end.fileno() for _, end in pairs]
    with subprocess.Popen([str(context.program("bench_echo")), *map(str, far)], pass_fds=far) as server:
        try:
            request = raw.pack_request(MSGID, "ping", {})
            return run_load(context, [end for end, _ in pairs], [request] * count, server.pid, "--raw")
        finally:
            server.kill()
            for pair in pairs:
                for end in pair:
                    end.close()


def summary(found: list[Found], name: str | None = None) -> Summary:
    rates = [its["per_s"] for its in found]
    return Summary(median(rates), min(rates), len(rates), name)


def cpu_us(found: list[Found]) -> float:
    return median(its["cpu_us"] for its in found)


def latency(found: list[Found], statistic: str) -> float:
    return median(its["series"]["latency"][statistic] for its in found)


def run_counts(context: Context) -> list[Record]:
    ours: dict[tuple[str, int], list[Found]] = {(kind, count): [] for kind in WHAT for count in COUNTS}
    raw_server: dict[int, list[Found]] = {count: [] for count in COUNTS}
    with daemon_on_two_processors(context) as daemon:
        for _ in range(1 if context.smoke else ROUNDS):
            for (kind, count), its in ours.items():
                its.append(one(context, daemon, kind, count))
                if kind == "noop":
                    raw_server[count].append(of_raw_server(context, count))
    records = []
    for (kind, count), found in ours.items():
        detail = {
            "measured": f"{WHAT[kind]}, one under way on each connection, host backend, sockets, 2 processors for the daemon and the load"
            " together; medians of rounds",
            "p99": "the slowest round",
            "n": "rounds",
            "latency_p50_us": latency(found, "p50"),
            "latency_p99_us": latency(found, "p99"),
            "daemon_cpu_us_per_request": cpu_us(found),
            "peer": "none: a server that adds is what this is",
        }
        peer = None
        if kind == "noop":
            its = raw_server[count]
            peer = summary(its, "raw epoll server, same bytes")
            detail |= {"peer_latency_p99_us": latency(its, "p99"), "peer_cpu_us_per_request": cpu_us(its)}
            del detail["peer"]
        records.append(Record(f"load_{kind}_{count}_connections", "requests/s", "higher", summary(found), peer, detail))
    return records


def run_saturation(context: Context) -> list[Record]:
    """Twice as much is asked for as the daemon gives when each connection waits for answers."""
    records = []
    with daemon_on_two_processors(context) as daemon:
        for kind in WHAT:
            most: list[Found] = []
            over: list[Found] = []
            for _ in range(1 if context.smoke else SATURATION_ROUNDS):
                most.append(one(context, daemon, kind, SATURATION_CONNECTIONS, "--depth", SATURATION_DEPTH))
                over.append(one(context, daemon, kind, SATURATION_CONNECTIONS, "--rate", int(2 * most[-1]["per_s"])))
            detail = {
                "measured": "answers a second while twice as many requests a second are due, beside what the daemon gives at most; the load"
                " sends up to 4096 ahead on a connection, the rest waits in it",
                "p99": "the slowest round",
                "n": "rounds",
                "offered_per_s": median(its["offered_per_s"] for its in over),
                "unanswered": sum(its["unanswered"] for its in over),
                "errors": sum(its["errors"] for its in over),
                "daemon_cpu_us_per_request": cpu_us(over),
            }
            peer = summary(most, f"{SATURATION_DEPTH} under way on each of {SATURATION_CONNECTIONS} connections")
            records.append(Record(f"load_{kind}_twice_saturation", "requests/s", "higher", summary(over), peer, detail, target=HOLDS))
    return records


add("load", run_counts, on_gpu=False, table=True, seconds=120)
add("load_saturation", run_saturation, on_gpu=False, table=True, seconds=90)
