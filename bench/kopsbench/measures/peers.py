"""The blocking add from Python against two other ways to have another process do it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .. import grpc_peer, queue_peer
from ..context import ROOT, Context, Skipped
from ..record import Record, summarise_rate
from . import add, rounds
from .blocking import ELEMENTS, check_sum, timed, vectors

STARTING_SECONDS = 60
CALLS = 1e9  # a rate of calls, not of billions


def rate(samples_us: Iterable[float], name: str | None = None) -> Any:
    """Calls a second."""
    return summarise_rate(samples_us, CALLS, name)


def record(name: str, ours: list[float], peer: list[float], peer_name: str, target: float, detail: dict[str, Any]) -> Record:
    return Record(name, "calls/s", "higher", rate(ours), rate(peer, peer_name), detail, target=target)


# ---- torch.multiprocessing ----


@contextmanager
def queue_call(context: Context, kind: str, tensors: tuple[Any, ...]) -> Iterator[Callable[[], None]]:
    from torch import multiprocessing

    spawn = multiprocessing.get_context("spawn")
    requests, replies = getattr(spawn, kind)(), getattr(spawn, kind)()
    child = spawn.Process(target=queue_peer.serve, args=(requests, replies), daemon=True)
    child.start()

    def call() -> None:
        requests.put(tensors)
        replies.get()

    try:
        call()
        yield call
        requests.put(None)
        child.join(10)
    finally:
        if child.is_alive():
            child.kill()
            child.join(10)


def run_queue(context: Context) -> Record:
    if context.smoke:
        raise Skipped("the stand-in has no torch.multiprocessing")
    a, b, out = vectors(context, 3)
    with (
        context.connect() as client,
        queue_call(context, "Queue", (a, b, out)) as by_queue,
        queue_call(context, "SimpleQueue", (a, b, out)) as by_simple_queue,
    ):
        ours, peer, simple = rounds(context, [timed(lambda: client.add(a, b, out=out)), timed(by_queue), timed(by_simple_queue)], warmup=50)
        check_sum(context, a, b, out)
    return record(
        "blocking_tiny_add_python_vs_queue",
        ours,
        peer,
        "torch.multiprocessing.Queue",
        20.0,
        {
            "measured": f"blocking Client.add(out=) of {ELEMENTS} f32 torch CUDA tensors against putting the three tensors"
            " into a queue of a process that adds, synchronizes and answers True through another",
            "simple_queue_p50": rate(simple).p50,
            **context.python_link(),
        },
    )


# ---- gRPC ----


@contextmanager
def grpc_call(context: Context, tensors: tuple[Any, ...]) -> Iterator[Callable[[], Any]]:
    import grpc
    import msgpack
    from standin_cuda import Driver

    folder = tempfile.TemporaryDirectory(prefix="kops-grpc-", ignore_cleanup_errors=True)
    path = str(Path(folder.name) / "socket")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "bench"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]),
        **({"KOPS_BENCH_SMOKE": "1"} if context.smoke else {}),
    }
    server = subprocess.Popen([sys.executable, "-m", "kopsbench.grpc_peer", path], stdin=subprocess.PIPE, env=environment)
    try:
        with grpc.insecure_channel(f"unix:{path}") as channel:
            grpc.channel_ready_future(channel).result(STARTING_SECONDS)
            stub = channel.unary_unary(grpc_peer.METHOD)
            driver = Driver()
            request = msgpack.packb([grpc_peer.describe(driver, tensor) for tensor in tensors])
            yield lambda: stub(request)
    finally:
        server.kill()
        server.wait()
        folder.cleanup()


def run_grpc(context: Context) -> Record:
    if importlib.util.find_spec("grpc") is None:
        raise Skipped("grpcio is not installed")
    a, b, out = vectors(context, 3)
    peer_out = context.torch.full((ELEMENTS,), 0.0, device="cuda")
    with context.connect() as client, grpc_call(context, (a, b, peer_out)) as by_grpc:
        ours, peer = rounds(context, [timed(lambda: client.add(a, b, out=out)), timed(by_grpc)], calls=context.calls * 2)
        check_sum(context, a, b, out)
        check_sum(context, a, b, peer_out)
    return record(
        "blocking_tiny_add_python_vs_grpc",
        ours,
        peer,
        "gRPC over a Unix socket, cached IPC handles",
        5.0,
        {
            "measured": f"blocking Client.add(out=) of {ELEMENTS} f32 torch CUDA tensors against a Python gRPC server with"
            " one thread that has the same IPC handles open and calls torch.add and synchronize; the request is"
            " packed once",
            **context.python_link(),
        },
    )


add("blocking_tiny_add_python_vs_queue", run_queue, on_gpu=True, table=True, seconds=90)
add("blocking_tiny_add_python_vs_grpc", run_grpc, on_gpu=True, table=True, seconds=90)
