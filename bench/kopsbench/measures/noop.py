"""The no-op call against a raw socket ping-pong with messages of the same sizes, in C and in Python."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterable
from time import perf_counter_ns

from ..context import Context
from ..record import Record, Summary, summarise
from . import add, alternate

# A ping with an empty map: [0, msgid, "ping", [{}]] and [1, msgid, nil, {}], with a msgid of three bytes.
REQUEST_BYTES = 12
REPLY_BYTES = 7
NOOP_TARGET = 1.5


def run_c(context: Context) -> Record:
    program = context.program("bench_rpc")
    calls = max(context.calls, 200) * 20  # a call is some 10 µs
    with context.daemon(cuda=False) as daemon:
        command = [
            str(program), "--socket", daemon.socket_path, "--blocks", str(context.blocks),
            "--calls", str(calls // context.blocks),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"bench_rpc failed: {done.stderr}")
    numbers = json.loads(done.stdout)
    ours, peer = numbers["kops_ping"], numbers["raw"]
    return Record(
        "noop_rpc_c",
        "us",
        "lower",
        Summary(ours["p50"], ours["p99"], ours["n"]),
        Summary(peer["p50"], peer["p99"], peer["n"], "raw_unix_ping_pong"),
        {
            "measured": "kops_ping() of libkops against send/recv of the same number of bytes between two processes",
            "waiting": "every process sleeps in the kernel",
            "ours_min": ours["min"],
            "peer_min": peer["min"],
        },
        target=NOOP_TARGET,
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


add("noop_rpc_c", run_c, on_gpu=False)
add("noop_rpc_python", run_python, on_gpu=False)
