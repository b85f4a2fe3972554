"""Blocking calls on the GPU: what a caller pays for going through the daemon, of a small add, and of kernels from 1 µs to 20 ms.

torch.cuda.synchronize() polls until the work has ended. Who sleeps instead, and wakes late, shows here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..context import Context, Skipped
from ..processors import processor_ns
from ..record import Record, summarise
from . import add
from .common import ELEMENTS, and_wait, beside, check, of_program, rounds, timed, vectors

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


def run_c(context: Context, name: str, target: float | None) -> Record:
    each = 20 if context.smoke else max(context.calls, 200) * 5 // context.blocks
    found = context.run_program(
        "bench_gpu", "--work", "tiny_add", "--blocks", context.blocks, "--calls", each, "--warmup", each, "--again", 20,
        "--elements", ELEMENTS, "--transport", "shm", socket=context.gpu_daemon.socket_path,
    )  # fmt: skip
    return beside(
        name,
        of_program(found["add"]),
        of_program(found["launch"], "in_process_launch_sync"),
        f"kops_add() of {ELEMENTS} f32 in CUDA memory against event, launch, event, synchronise, elapsed time of an equal kernel in the"
        " calling process",
        target,
        transport="shared-memory rings",
        untimed_ours_p50=found["add_untimed"]["p50"],
        untimed_peer_p50=found["launch_untimed"]["p50"],
    )


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


# ---- longer work ----


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
    asked = its.p99 * P99 + P99_MORE_US
    return beside(
        f"blocking_{name}",
        mine,
        its,
        f"blocking Client.{WORK[name][0]}(out=) of torch tensors, {WORK[name][2]}, size {WORK[name][1]}; processor time is the client's,"
        " the daemon's and the executors' together",
        P50 + MORE_US / its.p50,
        processor_us_a_call=ours.processor_us_a_call(),
        processor_us_a_call_peer=peer.processor_us_a_call(),
        p99_asked=asked,
        p99_met=mine.p99 <= asked,
        **context.python_link(),
    )


# Under MPS the processes share the GPU at the same time.
for _mps, _prefix in ((False, "blocking"), (True, "blocking_mps")):
    for _name, _run, _target in (("tiny_add_c_shm", run_c, 1.10), ("tiny_add_python", run_python, 1.5)):
        add(f"{_prefix}_{_name}", _run, f"{_prefix}_{_name}", None if _mps else _target, on_gpu=True, mps=_mps, table=True)
for _name in WORK:
    add(f"blocking_{_name}", run_duration, _name, on_gpu=True, table=True)
