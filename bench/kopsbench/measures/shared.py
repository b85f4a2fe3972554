"""A small blocking add on arrays in shared memory, which the daemon copies to the GPU and back, against torch doing the same from
page-locked memory, and against the same call on arrays of the GPU's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..context import Context
from ..record import Record, summarise
from . import add, rounds
from .blocking import timed


def through_torch(torch: Any, x: Any, y: Any) -> tuple[Callable[[], None], Any]:
    """The call, and where its result is then."""
    a, b, c = (torch.empty(x.size, device="cuda") for _ in range(3))
    pinned = [torch.empty(x.size).pin_memory() for _ in range(3)]
    for tensor, values in zip(pinned, (x, y)):
        tensor.copy_(torch.from_numpy(values))

    def call() -> None:
        a.copy_(pinned[0], non_blocking=True)
        b.copy_(pinned[1], non_blocking=True)
        torch.add(a, b, out=c)
        pinned[2].copy_(c, non_blocking=True)
        torch.cuda.synchronize()

    return call, pinned[2]


def run(context: Context, count: int) -> list[Record]:
    import kops
    import numpy

    torch = context.torch
    generator = numpy.random.default_rng(1)
    x, y = (generator.random(count, numpy.float32) for _ in range(2))
    with kops.connect(context.gpu_daemon.socket_path) as client:
        gpu = client.devices[0]
        shared = [client.empty(count) for _ in range(3)]
        shared[0][:], shared[1][:], shared[2][:] = x, y, numpy.nan
        there = [client.array(values, device=gpu) for values in (x, y, x)]
        calls = [
            lambda: client.add(shared[0], shared[1], out=shared[2], device=gpu),
            lambda: client.add(there[0], there[1], out=there[2]),
        ]
        results = [lambda: shared[2], lambda: there[2].get()]
        if not context.smoke:
            call, result = through_torch(torch, x, y)
            calls.append(call)
            results.append(result.numpy)
        ours, resident, *copied = rounds(context, [timed(call) for call in calls])
        for found in results:
            numpy.testing.assert_array_equal(found(), x + y)
    times = summarise(ours)
    detail = {"measured": f"Client.add() of {count} f32 in shared memory, waited for", "bytes": 4 * count, **context.python_link()}
    name = f"shared_add_{4 * count >> 10}KiB"
    peer = summarise(copied[0], "torch: copies from page-locked memory, torch.add, a copy back") if copied else None
    return [
        Record(name, "us", "lower", times, peer, detail, target=1.0 if copied else None),
        Record(f"{name}_vs_resident", "us", "lower", times, summarise(resident, "the same on arrays of the GPU's memory"), detail),
    ]


for _count in (1024, 5120, 16384):
    add(f"shared_add_{4 * _count >> 10}KiB", lambda context, count=_count: run(context, count), on_gpu=True)
