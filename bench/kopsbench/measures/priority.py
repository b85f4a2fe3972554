"""A small add of one client while another one always has large gemms queued, with high and with normal priority."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from time import monotonic, perf_counter_ns
from typing import Any

from ..context import Context
from ..record import Record, summarise
from . import add
from .common import ELEMENTS, Samples, beside, timed

SIDE, DEPTH = 8192, 4
BLOCKS, CALLS, BLOCK_S = 3, 100, 4.0  # without priorities a call may wait for several gemms
TARGET_US = 1500.0


def beside_gemms(client: Any, other: Any, vectors: list[Any], matrices: list[Any], priority: str, done: list[float]) -> Samples:
    """Samples of the add, with as many gemms of the other client under way at each. `done` gets the time of each gemm."""
    a, b, out = vectors
    pending: deque[Any] = deque()

    def fill() -> None:
        while len(pending) < DEPTH:
            pending.append(other.submit("gemm", matrices[0], matrices[1], out=matrices[2], timing=True))
        while pending and pending[0].done():
            done.append(pending.popleft().result()[1].exec_us)
            pending.append(other.submit("gemm", matrices[0], matrices[1], out=matrices[2], timing=True))

    def samples(n: int) -> Iterator[float]:
        until = monotonic() + BLOCK_S
        for _ in range(n):
            fill()
            start = perf_counter_ns()
            client.add(a, b, out=out, priority=priority)
            yield (perf_counter_ns() - start) * 1e-3
            if monotonic() > until:
                break
        while pending:
            pending.popleft().result()

    return samples


def run(context: Context) -> Record:
    import kops
    import numpy

    calls, side = (4, 64) if context.smoke else (CALLS, SIDE)
    path = context.gpu_daemon.socket_path
    with kops.connect(path, timeout=60) as client, kops.connect(path, timeout=60) as other:
        vectors = [client.array(numpy.ones(ELEMENTS, numpy.float32), device=client.devices[0]) for _ in range(3)]
        matrices = [other.array(numpy.ones((side, side), numpy.float32), device=other.devices[0]) for _ in range(3)]
        alone = summarise(timed(lambda: client.add(vectors[0], vectors[1], out=vectors[2]))(calls))
        gemms: list[float] = []
        found: dict[str, list[float]] = {"high": [], "normal": []}
        for _ in range(1 if context.smoke else BLOCKS):
            for priority, its in found.items():
                its += beside_gemms(client, other, vectors, matrices, priority, gemms)(calls)
    record = beside(
        "priority_high_beside_gemms",
        found["high"],
        (found["normal"], "the same add with normal priority"),
        f"Client.add(out=) of {ELEMENTS} f32 in the daemon's memory while another client always has {DEPTH} f32 gemms of {side}³ under way",
        TARGET_US,
        gemm_us=summarise(gemms).p50 if gemms else None,
        gemms_meanwhile=len(gemms),
        alone_p50=alone.p50,
        alone_p99=alone.p99,
    )
    record.absolute, record.statistic = True, "p99"
    return record


add("priority", run, on_gpu=True, table=True)
