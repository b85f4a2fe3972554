"""Twenty ops of a process without CUDA on arrays that stay on the GPU, against arrays that each call copies there and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..context import Context
from ..record import Record, summarise, summarise_rate
from . import add, rounds
from .blocking import timed

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
    """The same by NumPy."""
    a = x.copy()
    for i in range(OPS // 4):
        a = (a + y) ** 2
        a = (a + (numpy.float32(1) if i % 2 else y)) ** 2
    return a


def run(context: Context) -> list[Record]:
    import kops
    import numpy

    count = (SMOKE_BYTES if context.smoke else BYTES) // 4
    generator = numpy.random.default_rng(1)
    x, y = ((generator.random(count, numpy.float32) - 0.5) / 4 for _ in range(2))
    got = numpy.empty_like(x)
    with kops.connect(context.gpu_daemon.socket_path) as client:
        gpu = client.devices[0]
        a, b, c = (client.empty(count, device=gpu) for _ in range(3))
        own = [numpy.empty_like(x) for _ in range(3)]
        shared = [client.empty(count) for _ in range(3)]

        def resident() -> None:
            """Uploads both, computes, downloads."""
            a.set(x)
            b.set(y)
            chain(client, a, b, c).get(got)

        def staged(arrays: list[Any]) -> Callable[[], None]:
            def call() -> None:
                numpy.copyto(arrays[0], x)
                numpy.copyto(arrays[1], y)
                chain(client, *arrays, device=gpu)

            return call

        sides = [timed(resident), timed(staged(own)), timed(staged(shared))]
        ours, ordinary, in_shared = rounds(context, sides, calls=4 if context.smoke else CALLS, warmup=1)
        for found in (got, own[0], shared[0]):
            numpy.testing.assert_allclose(found, right(numpy, x, y), rtol=1e-4)
        up, down = client.array(x), client.empty(count)
        transfers = {}
        for name, source, out in (("upload", up, a), ("download", a, down)):
            samples = [client.copy(source, out=out, timing=True)[1] for _ in range(4 if context.smoke else CALLS)]
            transfers[f"{name}_gb_s_p50"] = summarise_rate([sample.gpu_us for sample in samples], count * 4).p50
            transfers[f"{name}_variant"] = samples[-1].variant
    detail = {"bytes": count * 4, "ops": OPS, **transfers, **context.python_link()}
    measured = f"{OPS} adds and squares on kops.Arrays of {count * 4 >> 20} MiB, uploaded and downloaded once, from ordinary NumPy arrays"
    times = summarise(ours)
    return [
        Record(
            "arrays_20_ops_64MiB", "us", "lower", times, summarise(ordinary, "ordinary NumPy arrays, copied by each call"),
            {"measured": f"{measured}, against the same calls on NumPy arrays", **detail}, target=0.2,
        ),
        Record(
            "arrays_20_ops_64MiB_vs_shared", "us", "lower", times, summarise(in_shared, "arrays in shared memory, staged by each call"),
            {"measured": f"{measured}, against the same calls on arrays of k.empty", **detail},
        ),
    ]  # fmt: skip


add("arrays_20_ops_64MiB", run, on_gpu=True, table=True, seconds=300)
