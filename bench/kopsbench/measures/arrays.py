"""Arrays of a process: twenty ops on kops.Arrays, which stay on the GPU, against arrays that each call copies there and back; and a
small blocking add on arrays in shared memory, which the daemon copies, against torch doing the same from page-locked memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..context import Context
from ..record import Record
from . import add
from .common import beside, rounds, timed

OPS, BYTES, SMOKE_BYTES, CALLS = 20, 64 << 20, 1 << 20, 40


def chain(client: Any, a: Any, b: Any, c: Any, **where: Any) -> Any:
    """Twenty ops, each of which reads what the one before wrote."""
    for i in range(OPS // 4):
        client.add(a, b, out=c, **where)
        client.square(c, out=a, **where)
        client.add(a, 1.0 if i % 2 else b, out=c, **where)
        client.square(c, out=a, **where)
    return a


def right(numpy: Any, x: Any, y: Any) -> Any:
    """The result by NumPy."""
    for i in range(OPS // 4):
        x = ((x + y) ** 2 + (numpy.float32(1) if i % 2 else y)) ** 2
    return x


def run(context: Context) -> Record:
    import kops
    import numpy

    count, calls = (SMOKE_BYTES // 4, 4) if context.smoke else (BYTES // 4, CALLS)
    generator = numpy.random.default_rng(1)
    x, y = ((generator.random(count, numpy.float32) - 0.5) / 4 for _ in range(2))
    got = numpy.empty_like(x)
    with kops.connect(context.gpu_daemon.socket_path) as client:
        gpu = client.devices[0]
        a, b, c = (client.empty(count, device=gpu) for _ in range(3))
        own = [numpy.empty_like(x) for _ in range(3)]

        def resident() -> None:
            """Uploads both, computes, downloads."""
            a.set(x)
            b.set(y)
            chain(client, a, b, c).get(got)

        def staged() -> None:
            numpy.copyto(own[0], x)
            numpy.copyto(own[1], y)
            chain(client, *own, device=gpu)

        ours, peer = rounds(context, [timed(resident), timed(staged)], calls=calls, warmup=1)
        for found in (got, own[0]):
            numpy.testing.assert_allclose(found, right(numpy, x, y), rtol=1e-4)
    measured = (
        f"{OPS} adds and squares on kops.Arrays of {count * 4 >> 20} MiB, uploaded and downloaded once, from ordinary NumPy arrays, against"
        " the same calls on NumPy arrays"
    )
    detail: dict[str, Any] = {"bytes": count * 4, "ops": OPS, **context.python_link()}
    return beside("arrays_20_ops_64MiB", ours, (peer, "ordinary NumPy arrays, copied by each call"), measured, 0.2, **detail)


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


def run_shared(context: Context, name: str, count: int) -> Record:
    import kops
    import numpy

    generator = numpy.random.default_rng(1)
    x, y = (generator.random(count, numpy.float32) for _ in range(2))
    with kops.connect(context.gpu_daemon.socket_path) as client:
        gpu = client.devices[0]
        a, b, out = (client.empty(count) for _ in range(3))
        a[:], b[:], out[:] = x, y, numpy.nan
        calls, copied = [lambda: client.add(a, b, out=out, device=gpu)], None
        if not context.smoke:
            call, copied = through_torch(context.torch, x, y)
            calls.append(call)
        ours, *theirs = rounds(context, [timed(call) for call in calls])
        for found in (out, *([copied.numpy()] if copied is not None else [])):
            numpy.testing.assert_array_equal(found, x + y)
    peer = (theirs[0], "torch: copies from page-locked memory, torch.add, a copy back") if theirs else None
    measured = f"Client.add() of {count} f32 in shared memory, waited for"
    return beside(name, ours, peer, measured, 1.0 if peer else None, bytes=4 * count, **context.python_link())


add("arrays_20_ops_64MiB", run, on_gpu=True, table=True, seconds=300)
for _count in (1024, 16384):
    add(f"shared_add_{4 * _count >> 10}KiB", run_shared, f"shared_add_{4 * _count >> 10}KiB", _count, on_gpu=True)
