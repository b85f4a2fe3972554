"""The blocking add from Python against two other ways to have another process do it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .. import grpc_peer
from ..context import Context, Skipped
from ..record import Record, summarise_rate
from . import add
from .common import A_SECOND, ELEMENTS, check, rate_beside, rounds, timed, vectors

STARTING_SECONDS = 60
ADDS = f"blocking Client.add(out=) of {ELEMENTS} f32 torch CUDA tensors against"


# ---- torch.multiprocessing ----


def serve_queue(requests: Any, replies: Any) -> None:
    """The other side: adds what comes and says so."""
    import torch

    while (tensors := requests.get()) is not None:
        a, b, out = tensors
        torch.add(a, b, out=out)
        torch.cuda.synchronize()
        del tensors, a, b, out  # tells the sender that its memory is not used any more
        replies.put(True)


@contextmanager
def queue_call(context: Context, kind: str, tensors: tuple[Any, ...]) -> Iterator[Callable[[], None]]:
    from torch import multiprocessing

    spawn = multiprocessing.get_context("spawn")
    requests, replies = getattr(spawn, kind)(), getattr(spawn, kind)()
    child = spawn.Process(target=serve_queue, args=(requests, replies), daemon=True)
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
    tensors = a, b, out = vectors(context, 3)
    with (
        context.connect() as client,
        queue_call(context, "Queue", tensors) as by_queue,
        queue_call(context, "SimpleQueue", tensors) as by_simple_queue,
    ):
        ours, peer, simple = rounds(context, [timed(lambda: client.add(a, b, out=out)), timed(by_queue), timed(by_simple_queue)], warmup=50)
        check(context, out, 3.0)
    return rate_beside(
        "blocking_tiny_add_python_vs_queue",
        ours,
        (peer, "torch.multiprocessing.Queue"),
        f"{ADDS} putting the three tensors into a queue of a process that adds, synchronizes and answers True through another",
        20.0,
        simple_queue_p50=summarise_rate(simple, A_SECOND).p50,
        **context.python_link(),
    )


# ---- gRPC ----


@contextmanager
def grpc_call(context: Context, tensors: tuple[Any, ...]) -> Iterator[Callable[[], Any]]:
    import grpc
    import msgpack
    from standin_cuda import Driver

    with tempfile.TemporaryDirectory(prefix="kops-grpc-", ignore_cleanup_errors=True) as folder:
        path = f"{folder}/socket"
        command = [sys.executable, "-m", "kopsbench.grpc_peer", path]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, env=context.of_children())
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


def run_grpc(context: Context) -> Record:
    if importlib.util.find_spec("grpc") is None:
        raise Skipped("grpcio is not installed")
    a, b, out = vectors(context, 3)
    peer_out = context.torch.full((ELEMENTS,), 0.0, device="cuda")
    with context.connect() as client, grpc_call(context, (a, b, peer_out)) as by_grpc:
        ours, peer = rounds(context, [timed(lambda: client.add(a, b, out=out)), timed(by_grpc)], calls=context.calls * 2)
        check(context, out, 3.0)
        check(context, peer_out, 3.0)
    return rate_beside(
        "blocking_tiny_add_python_vs_grpc",
        ours,
        (peer, "gRPC over a Unix socket, cached IPC handles"),
        f"{ADDS} a Python gRPC server with one thread that has the same IPC handles open and calls torch.add and synchronize; the"
        " request is packed once",
        5.0,
        **context.python_link(),
    )


add("blocking_tiny_add_python_vs_queue", run_queue, on_gpu=True, table=True, seconds=90)
add("blocking_tiny_add_python_vs_grpc", run_grpc, on_gpu=True, table=True, seconds=90)
