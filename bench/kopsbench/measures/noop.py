"""The no-op call against a raw socket ping-pong with messages of the same sizes, in C and in Python."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from time import perf_counter_ns
from typing import Any

from ..context import Context
from ..processors import two_processors
from ..record import Record, Summary, summarise
from . import add, alternate

# A ping with an empty map: [0, msgid, "ping", [{}]] and [1, msgid, nil, {}], with a msgid of three bytes.
REQUEST_BYTES = 12
REPLY_BYTES = 7
SPIN_US = 200


def summary(found: dict[str, Any], name: str | None = None) -> Summary:
    """Of a series that a program printed."""
    return Summary(found["p50"], found["p99"], found["n"], name, found["max"])


def program_calls(context: Context) -> tuple[Any, ...]:
    """Of a program whose call is some 10 µs."""
    each = 20 if context.smoke else max(context.calls, 200) * 20 // context.blocks
    return "--blocks", context.blocks, "--calls", each, "--warmup", each


def run_socket(context: Context, *, spin: bool) -> Record:
    with context.daemon("--set", f"server.spin_us={SPIN_US if spin else 0}", cuda=False) as daemon:
        found = context.run_program(
            "bench_rpc", *program_calls(context), "--transport", "socket", "--spin", SPIN_US if spin else "none",
            *(("--peer-spin-us", SPIN_US) if spin else ()), socket=daemon.socket_path,
        )  # fmt: skip
    return Record(
        f"noop_rpc_socket_{'spin' if spin else 'sleep'}",
        "us",
        "lower",
        summary(found["kops_ping"]),
        summary(found["raw"], "raw_unix_ping_pong"),
        {
            "measured": "kops_ping() of libkops against send/recv of the same number of bytes between two processes",
            "transport": "AF_UNIX stream socket",
            "spin": f"every process polls up to {SPIN_US} us before it sleeps" if spin else "every process sleeps at once",
            "ours_min": found["kops_ping"]["min"],
            "peer_min": found["raw"]["min"],
        },
        target=1.2,
    )


def run_shm(context: Context) -> Record:
    with context.daemon("--set", f"server.spin_us={SPIN_US}", cuda=False) as daemon:
        found = context.run_program(
            "bench_rpc", *program_calls(context), "--transport", "shm", "--spin", SPIN_US, "--peer", "words",
            socket=daemon.socket_path,
        )  # fmt: skip
    return Record(
        "noop_rpc_shm",
        "us",
        "lower",
        summary(found["kops_ping"]),
        summary(found["raw"], "shared_memory_flag_ping_pong"),
        {
            "measured": "kops_ping() of libkops; beside it two processes that poll one word each in shared memory",
            "transport": "shared-memory rings",
            "spin": f"both sides poll up to {SPIN_US} us before they sleep",
        },
        target=1.0,
        absolute=True,
    )


def run_two_clients(context: Context) -> Record:
    """On two processors, whatever the machine has: where polling would only take them from others."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, two_processors())  # for those who are started now
    try:
        with context.daemon("--set", "server.spin_us=0", cuda=False) as daemon:
            common = (*program_calls(context), "--transport", "socket", "--spin", "none", "--clients", 2)
            found = context.run_program("bench_rpc", *common, "--peer", "server", socket=daemon.socket_path)
            pairs = context.run_program("bench_rpc", *common, socket=daemon.socket_path)
    finally:
        os.sched_setaffinity(0, allowed)
    return Record(
        "noop_rpc_2_clients_2_cores",
        "us",
        "lower",
        summary(found["kops_ping"]),
        summary(found["raw"], "raw_unix_ping_pong, one epoll server for both"),
        {
            "measured": "kops_ping() of two processes at once against a raw server of two sockets, on 2 processors",
            "transport": "AF_UNIX stream socket",
            "spin": "every process sleeps at once",
            "mean_ours": found["kops_ping"]["mean"],
            "mean_peer": found["raw"]["mean"],
            "two_raw_pairs_of_4_processes_p50": pairs["raw"]["p50"],
            "two_raw_pairs_of_4_processes_mean": pairs["raw"]["mean"],
        },
        target=1.3,
    )


class RawPair:
    """Two Python processes over a socket pair; the child echoes."""

    def __enter__(self) -> RawPair:
        self.end, far_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.child = os.fork()
        if self.child == 0:
            try:
                self.end.close()
                reply = bytes(REPLY_BYTES)
                while len(far_end.recv(REQUEST_BYTES, socket.MSG_WAITALL)) == REQUEST_BYTES:
                    far_end.sendall(reply)
            finally:
                os._exit(0)
        far_end.close()
        return self

    def __exit__(self, *_: object) -> None:
        self.end.close()
        os.waitpid(self.child, 0)

    def calls(self, n: int) -> Iterable[float]:
        end, request = self.end, bytes(REQUEST_BYTES)
        for _ in range(n):
            start = perf_counter_ns()
            end.sendall(request)
            end.recv(REPLY_BYTES, socket.MSG_WAITALL)
            yield (perf_counter_ns() - start) * 1e-3


def run_python(context: Context) -> Record:
    import kops

    with RawPair() as pair, context.daemon(cuda=False) as daemon, kops.connect(daemon.socket_path) as client:

        def ping(n: int) -> Iterable[float]:
            for _ in range(n):
                start = perf_counter_ns()
                client.ping()
                yield (perf_counter_ns() - start) * 1e-3

        ours, peer = alternate(context, ping, pair.calls, calls=context.calls * 10)
    return Record(
        "noop_rpc_python",
        "us",
        "lower",
        summarise(ours),
        summarise(peer, "raw_unix_ping_pong_python"),
        {"measured": "Client.ping() against sendall/recv of the same number of bytes between two Python processes"},
    )


add("noop_rpc_socket_sleep", lambda context: run_socket(context, spin=False), on_gpu=False, table=True)
add("noop_rpc_socket_spin", lambda context: run_socket(context, spin=True), on_gpu=False, table=True)
add("noop_rpc_shm", run_shm, on_gpu=False, table=True)
add("noop_rpc_2_clients_2_cores", run_two_clients, on_gpu=False, table=True)
add("noop_rpc_python", run_python, on_gpu=False)
