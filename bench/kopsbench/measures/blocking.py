"""Blocking calls: what a caller pays for going through the daemon. A no-op against a raw ping-pong; a small add against this process's own
launches and against other processes that add; kernels from 1 µs to 20 ms; programs of twenty adds; an add beside another client's gemms.

torch.cuda.synchronize() polls until the work has ended. Who sleeps instead, and wakes late, shows here."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, perf_counter_ns
from typing import Any

from .. import grpc_peer
from ..context import Context, Skipped
from ..processors import processor_ns
from ..record import Record, summarise
from . import add
from .common import (
    ELEMENTS,
    Samples,
    and_wait,
    beside,
    by_program,
    check,
    client_with,
    many_calls,
    of_program,
    rate_beside,
    rounds,
    timed,
    vectors,
)

# ---- no-op ----

SPIN_US = 200


def run_noop(context: Context, name: str, transport: str, *peer: str) -> Record:
    """`peer`: arguments that make every process poll before it sleeps; without them all sleep at once."""
    each, shm = many_calls(context, 20, smoke=20), transport == "shm"
    turns = ("--blocks", context.blocks, "--calls", each, "--warmup", each)
    link = ("--transport", transport, "--spin", SPIN_US if peer else "none")
    with context.daemon("--set", f"server.spin_us={SPIN_US if peer else 0}", cuda=False) as daemon:
        found = context.run_program("bench_rpc", *turns, *link, *peer, socket=daemon.socket_path)
    raw = "two processes that poll one word each in shared memory" if shm else "send/recv of the same number of bytes"
    detail = {
        "transport": "shared-memory rings" if shm else "AF_UNIX stream socket",
        "spin": f"every process polls up to {SPIN_US} us before it sleeps" if peer else "every process sleeps at once",
    }
    theirs = of_program(found["raw"], "shared_memory_flag_ping_pong" if shm else "raw_unix_ping_pong")
    measured = f"kops_ping() of libkops; beside it {raw}"
    record = beside(name, of_program(found["kops_ping"]), theirs, measured, 1.0 if shm else 1.2, **detail)
    record.absolute = shm
    return record


for _name, _transport, *_peer in (
    ("noop_rpc_socket_sleep", "socket"),
    ("noop_rpc_socket_spin", "socket", "--peer-spin-us", str(SPIN_US)),
    ("noop_rpc_shm", "shm", "--peer", "words"),
):
    add(_name, run_noop, _name, _transport, *_peer, on_gpu=False, table=True)

# ---- a small add; under MPS the processes share the GPU at the same time ----


def run_c(context: Context, name: str, target: float | None) -> Record:
    each = many_calls(context, 5, smoke=20)
    turns = {"blocks": context.blocks, "calls": each, "warmup": each, "again": 20}
    found = by_program(context, "tiny_add", **turns, elements=ELEMENTS, transport="shm")
    peer = of_program(found["launch"], "in_process_launch_sync")
    measured = (
        f"kops_add() of {ELEMENTS} f32 in CUDA memory against event, launch, event, synchronise, elapsed time of an equal kernel in the"
        " calling process"
    )
    return beside(name, of_program(found["add"]), peer, measured, target, transport="shared-memory rings")


def run_python(context: Context, name: str, target: float | None) -> Record:
    torch = context.torch
    a, b, out = vectors(context, 3)
    with context.connect() as client:
        sides = [timed(lambda: client.add(a, b, out=out)), timed(and_wait(context, lambda: torch.add(a, b, out=out)))]
        ours, peer = rounds(context, sides, calls=context.calls * 5)
        client.add(b, b, out=out)
        check(context, out, 4.0)
    measured = f"blocking Client.add(out=) of {ELEMENTS} f32 torch CUDA tensors against torch.add(out=) + torch.cuda.synchronize()"
    return beside(name, ours, (peer, "torch.add + synchronize"), measured, target, **context.python_link())


for _mps, _prefix in ((False, "blocking"), (True, "blocking_mps")):
    for _name, _run, _target in (("tiny_add_c_shm", run_c, 1.10), ("tiny_add_python", run_python, 1.5)):
        add(f"{_prefix}_{_name}", _run, f"{_prefix}_{_name}", None if _mps else _target, on_gpu=True, mps=_mps, table=True)

# ---- longer work ----

KI, MI = 1 << 10, 1 << 20
# the kernel's duration on an H200, the op, its size, the dtype, calls
WORK = {
    "1us": ("square", KI, "float32", 2000),
    "32us": ("square", 16 * MI, "float32", 1000),
    "126us": ("square", 64 * MI, "float32", 600),
    "500us": ("square", 256 * MI, "float32", 400),
    "gemm_170us": ("gemm", 4096, "bfloat16", 600),
    "gemm_1400us": ("gemm", 8192, "bfloat16", 200),
    "gemm_20ms": ("gemm", 8192, "float32", 60),
}
P50, MORE_US = 1.03, 3.0  # asked of the median: torch's times this, and so much more
P99, P99_MORE_US = 1.2, 10.0
BLOCKS = 5


@dataclass
class Side:
    call: Callable[[], Any]
    processes: Callable[[], int]  # processor time so far, ns
    times: list[float] = field(default_factory=list)
    processor_ns: int = 0

    def block(self, n: int) -> None:
        # The first calls after a turn find cold caches and a GPU that belongs to the other process.
        for _ in range(3):
            self.call()
        before = self.processes()
        self.times += timed(self.call)(n)
        self.processor_ns += self.processes() - before

    def processor_us_a_call(self) -> float:
        return self.processor_ns * 1e-3 / len(self.times)


def calls_of(context: Context, client: Any, name: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The call by the daemon, and torch's with a synchronisation. Skipped where the GPU has too little memory."""
    if context.smoke:
        raise Skipped("the stand-in for torch has neither squares nor products")
    torch = context.torch
    op, n, dtype, _ = WORK[name]
    shape = (n,) if op == "square" else (n, n)
    try:
        a, b, out, expected = (torch.rand(*shape, device="cuda").to(getattr(torch, dtype)) for _ in range(4))
    except torch.OutOfMemoryError:
        raise Skipped(f"{name}: the GPU has too little free memory") from None
    if op == "square":
        ours, peer = (lambda: client.square(a, out=out)), and_wait(context, lambda: torch.square(a, out=expected))
    else:
        ours, peer = (lambda: client.gemm(a, b, out=out)), and_wait(context, lambda: torch.mm(a, b, out=expected))
    ours()
    peer()
    if not torch.allclose(out.double(), expected.double(), rtol=2e-2):
        raise RuntimeError("the result is wrong")
    return ours, peer


def run_duration(context: Context, name: str) -> Record:
    daemon = context.gpu_daemon
    ours_call, peer_call = calls_of(context, context.gpu_client(), name)
    sides = ours, peer = Side(ours_call, lambda: processor_ns() + processor_ns(daemon.pid)), Side(peer_call, processor_ns)
    for side in sides:
        for _ in range(30):
            side.call()
    for _ in range(BLOCKS):
        for side in sides:
            side.block(WORK[name][3] // BLOCKS)
    mine, its = summarise(ours.times), summarise(peer.times, "torch + synchronize")
    op, size, dtype, _ = WORK[name]
    measured = (
        f"blocking Client.{op}(out=) of torch tensors, {dtype}, size {size}; processor time is the client's, the daemon's and the"
        " executors' together"
    )
    asked = its.p99 * P99 + P99_MORE_US
    used = {"processor_us_a_call": ours.processor_us_a_call(), "processor_us_a_call_peer": peer.processor_us_a_call()}
    detail = {**used, "p99_asked": asked, "p99_met": mine.p99 <= asked, **context.python_link()}
    return beside(f"blocking_{name}", mine, its, measured, P50 + MORE_US / its.p50, **detail)


for _name in WORK:
    add(f"blocking_{_name}", run_duration, _name, on_gpu=True, table=True)

# ---- the small add by other ways to have another process do it ----

STARTING_SECONDS = 60
ADDS = f"blocking Client.add(out=) of {ELEMENTS} f32 torch CUDA tensors against"


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
def queue_call(tensors: tuple[Any, ...]) -> Iterator[Callable[[], None]]:
    from torch import multiprocessing

    spawn = multiprocessing.get_context("spawn")
    requests, replies = spawn.Queue(), spawn.Queue()
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
    with context.connect() as client, queue_call(tensors) as by_queue:
        ours, peer = rounds(context, [timed(lambda: client.add(a, b, out=out)), timed(by_queue)], warmup=50)
        check(context, out, 3.0)
    measured = f"{ADDS} putting the three tensors into a queue of a process that adds, synchronizes and answers True through another"
    by = (peer, "torch.multiprocessing.Queue")
    return rate_beside("blocking_tiny_add_python_vs_queue", ours, by, measured, 20.0, **context.python_link())


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
    a, b, out, peer_out = vectors(context, 4)
    with context.connect() as client, grpc_call(context, (a, b, peer_out)) as by_grpc:
        ours, peer = rounds(context, [timed(lambda: client.add(a, b, out=out)), timed(by_grpc)], calls=context.calls * 2)
        check(context, out, 3.0)
        check(context, peer_out, 3.0)
    measured = (
        f"{ADDS} a Python gRPC server with one thread that has the same IPC handles open and calls torch.add and synchronize; the"
        " request is packed once"
    )
    by = (peer, "gRPC over a Unix socket, cached IPC handles")
    return rate_beside("blocking_tiny_add_python_vs_grpc", ours, by, measured, 5.0, **context.python_link())


add("blocking_tiny_add_python_vs_queue", run_queue, on_gpu=True, table=True, seconds=90)
add("blocking_tiny_add_python_vs_grpc", run_grpc, on_gpu=True, table=True, seconds=90)

# ---- twenty small adds as one program, against twenty calls and a CUDA graph of the caller ----

OPS = 20


def run_program_c(context: Context) -> list[Record]:
    found = by_program(context, "program", blocks=context.blocks, calls=many_calls(context, 2))
    measured = f"kops_program_run() of {OPS} adds of 1024 f32, each reading what the last wrote, against"
    peers = {"launches": f"{OPS} launches", "graph": "cuGraphLaunch"}
    records = []
    for peer, what in peers.items():
        if peer in found:  # a driver may have no graphs
            theirs = of_program(found[peer], f"{what} + synchronize")
            how = f"{measured} {what} and cuStreamSynchronize"
            records.append(beside(f"program_20_c_vs_{peer}", of_program(found["program"]), theirs, how))
    return records


def run_program_python(context: Context) -> list[Record]:
    torch = context.torch
    b, x, y = vectors(context, 3)  # 1, 2, 3
    # x = x + b through y, twenty times.
    steps = [((x, b), y) if i % 2 == 0 else ((y, b), x) for i in range(OPS)]
    with client_with(context, "program") as client:
        with client.program() as program:
            for inputs, out in steps:
                client.add(*inputs, out=out)

        def eager() -> None:
            for inputs, out in steps:
                torch.add(*inputs, out=out)

        and_wait(context, eager)()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            eager()
        sides = [program.run, and_wait(context, eager), and_wait(context, graph.replay)]
        ours, by_eager, by_graph = rounds(context, [timed(side) for side in sides], calls=context.calls * 2)
        torch.add(b, b, out=x)
        torch.cuda.synchronize()
        program.run()
        check(context, x, 2.0 + OPS)
    measured, link = f"run() of a program of {OPS} Client.add(out=) of 1024 f32 torch CUDA tensors, blocking", context.python_link()
    graph_peer = (by_graph, "torch.cuda.CUDAGraph.replay + synchronize")
    return [
        rate_beside("program_20_python_vs_eager", ours, (by_eager, "20 torch.add(out=) + synchronize"), measured, 3.0, **link),
        beside("program_20_python_vs_graph", ours, graph_peer, measured, 1.3, **link),
    ]


add("program_20_c", run_program_c, on_gpu=True, table=True)
add("program_20_python", run_program_python, on_gpu=True, table=True)

# ---- a small add while another client always has large gemms queued, with high and with normal priority ----

SIDE, DEPTH = 8192, 4
PRIORITY_BLOCKS, CALLS, BLOCK_S = 3, 100, 4.0  # without priorities a call may wait for several gemms
TARGET_US = 1500.0


def beside_gemms(call: Callable[[], Any], submit: Callable[[], Any], done: list[float]) -> Samples:
    """Samples of the call, with as many gemms under way at each. `done` gets the time of each gemm."""
    pending: deque[Any] = deque()

    def fill() -> None:
        while len(pending) < DEPTH:
            pending.append(submit())
        while pending and pending[0].done():
            done.append(pending.popleft().result()[1].exec_us)
            pending.append(submit())

    def samples(n: int) -> Iterator[float]:
        until = monotonic() + BLOCK_S
        for _ in range(n):
            fill()
            start = perf_counter_ns()
            call()
            yield (perf_counter_ns() - start) * 1e-3
            if monotonic() > until:
                break
        while pending:
            pending.popleft().result()

    return samples


def run_priority(context: Context) -> Record:
    import kops
    import numpy

    calls, side = (4, 64) if context.smoke else (CALLS, SIDE)
    path = context.gpu_daemon.socket_path
    with kops.connect(path, timeout=60) as client, kops.connect(path, timeout=60) as other:
        a, b, out = (client.array(numpy.ones(ELEMENTS, numpy.float32), device=client.devices[0]) for _ in range(3))
        x, y, z = (other.array(numpy.ones((side, side), numpy.float32), device=other.devices[0]) for _ in range(3))
        gemms: list[float] = []
        found: dict[str, list[float]] = {"high": [], "normal": []}
        for _ in range(1 if context.smoke else PRIORITY_BLOCKS):
            for priority, its in found.items():
                call = lambda to=priority: client.add(a, b, out=out, priority=to)  # type: ignore[misc]  # noqa: E731
                its += beside_gemms(call, lambda: other.submit("gemm", x, y, out=z, timing=True), gemms)(calls)
    peer = summarise(found["normal"], "the same add with normal priority")
    detail = {
        "measured": f"Client.add(out=) of {ELEMENTS} f32 in the daemon's memory while another client always has {DEPTH} f32 gemms of"
        f" {side}³ under way",
        "gemm_us": summarise(gemms).p50 if gemms else None,
        "gemms_meanwhile": len(gemms),
    }
    return Record("priority_high_beside_gemms", "us", "lower", summarise(found["high"]), peer, detail, TARGET_US, True, "p99")


add("priority", run_priority, on_gpu=True, table=True)
