"""Blocking calls of kernels that last from 1 µs to 20 ms: the wall clock and the processor time of a call, beside torch's.

torch.cuda.synchronize() polls until the work has ended. Who sleeps instead, and wakes late, shows here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from ..context import Context, Skipped
from ..processors import processor_ns
from ..record import Record, summarise
from . import add

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
    times: list[float]
    processor_ns: int = 0

    def block(self, n: int) -> None:
        # The first calls after a turn find cold caches and a GPU that belongs to the other process.
        for _ in range(3):
            self.call()
        before = self.processes()
        for _ in range(n):
            start = perf_counter_ns()
            self.call()
            self.times.append((perf_counter_ns() - start) * 1e-3)
        self.processor_ns += self.processes() - before


def calls_of(context: Context, client: Any, name: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The call by the daemon, and torch's with a synchronisation. Skipped where the GPU has too little memory."""
    if context.smoke:
        raise Skipped("the stand-in for torch has neither squares nor products")
    torch = context.torch
    op, n, dtype, _ = WORK[name]
    dtype = getattr(torch, dtype)
    shape = (n,) if op == "square" else (n, n)
    try:
        a, b, out, expected = (torch.rand(*shape, device="cuda").to(dtype) for _ in range(4))
    except torch.OutOfMemoryError:
        raise Skipped(f"{name}: the GPU has too little free memory") from None
    if op == "square":
        ours, peer = (lambda: client.square(a, out=out)), (lambda: torch.square(a, out=expected))
    else:
        ours, peer = (lambda: client.gemm(a, b, out=out)), (lambda: torch.mm(a, b, out=expected))

    def waited() -> None:
        peer()
        torch.cuda.synchronize()

    ours()
    waited()
    if not torch.allclose(out.double(), expected.double(), rtol=2e-2):
        raise RuntimeError("the result is wrong")
    return ours, waited


def run(context: Context, name: str) -> list[Record]:
    daemon = context.gpu_daemon
    client = context.gpu_client()
    ours_call, peer_call = calls_of(context, client, name)

    def with_daemon() -> int:
        return processor_ns() + processor_ns(daemon.pid)

    sides = ours, peer = Side(ours_call, with_daemon, []), Side(peer_call, processor_ns, [])
    each = WORK[name][3] // BLOCKS
    for side in sides:
        for _ in range(30):
            side.call()
    for _ in range(BLOCKS):
        for side in sides:
            side.block(each)
    mine, its = summarise(ours.times), summarise(peer.times, "torch + synchronize")
    processor = {
        "processor_us_a_call": ours.processor_ns * 1e-3 / len(ours.times),
        "processor_us_a_call_peer": peer.processor_ns * 1e-3 / len(peer.times),
    }
    detail = {
        "measured": f"blocking Client.{WORK[name][0]}(out=) of torch tensors, {WORK[name][2]}, size {WORK[name][1]}; processor time is the"
        " client's, the daemon's and the executors' together",
        **processor,
        "p99_asked": its.p99 * P99 + P99_MORE_US,
        "p99_met": mine.p99 <= its.p99 * P99 + P99_MORE_US,
        **context.python_link(),
    }
    return [Record(f"blocking_{name}", "us", "lower", mine, its, detail, target=P50 + MORE_US / its.p50)]


for _name in WORK:
    add(f"blocking_{_name}", lambda c, name=_name: run(c, name), on_gpu=True, table=True)

