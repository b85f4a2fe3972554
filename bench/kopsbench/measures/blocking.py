"""One small blocking add on the GPU: what a caller pays for going through the daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import perf_counter_ns
from typing import Any

from ..context import Context
from ..record import Record, summarise
from . import add, alternate
from .noop import summary

ELEMENTS = 1024


def run_c(context: Context, name: str, transport: str, target: float | None) -> Record:
    each = 20 if context.smoke else max(context.calls, 200) * 5 // context.blocks
    found = context.run_program(
        "bench_tiny_add", "--blocks", context.blocks, "--calls", each, "--warmup", each, "--elements", ELEMENTS,
        "--transport", transport, *(("--spin", "none") if transport == "socket" else ()),
        socket=context.gpu_daemon.socket_path,
    )  # fmt: skip
    return Record(
        name,
        "us",
        "lower",
        summary(found["add"]),
        summary(found["launch"], "in_process_launch_sync"),
        {
            "measured": f"kops_add() of {ELEMENTS} f32 in CUDA memory against event, launch, event,"
            " synchronise, elapsed time of an equal kernel in the calling process",
            "transport": {"shm": "shared-memory rings", "socket": "AF_UNIX stream socket"}[transport],
            "client_wait": "sleeps" if transport == "socket" else "polls as long as it pays",
            "gpu_us_ours_p50": found["add_gpu"]["p50"],
            "gpu_us_peer_p50": found["launch_gpu"]["p50"],
            "untimed_ours_p50": found["add_untimed"]["p50"],
            "untimed_peer_p50": found["launch_untimed"]["p50"],
            "ping_p50": found["ping"]["p50"],
        },
        target=target,
    )


def timed(call: Callable[[], Any]) -> Callable[[int], Iterator[float]]:
    """Durations of single calls, in microseconds."""

    def samples(n: int) -> Iterator[float]:
        for _ in range(n):
            start = perf_counter_ns()
            call()
            yield (perf_counter_ns() - start) * 1e-3

    return samples


def check_sum(context: Context, a: Any, b: Any, out: Any) -> None:
    """A number is worth nothing when the result is wrong."""
    context.torch.cuda.synchronize()
    if not context.torch.equal(out, context.torch.add(a, b)):
        raise RuntimeError("the result is wrong")


def vectors(context: Context, n: int) -> tuple[Any, ...]:
    """Tensors of 1, 2, 3, …"""
    made = tuple(context.torch.full((ELEMENTS,), float(i + 1), device="cuda") for i in range(n))
    context.torch.cuda.synchronize()
    return made


def run_python(context: Context, name: str, target: float | None) -> Record:
    torch = context.torch
    a, b, out = vectors(context, 3)
    with context.connect() as client:

        def peer_call() -> None:
            torch.add(a, b, out=out)
            torch.cuda.synchronize()

        ours: Callable[[int], Iterable[float]] = timed(lambda: client.add(a, b, out=out))
        our_times, peer_times = alternate(context, ours, timed(peer_call), calls=context.calls * 5)
        client.add(b, b, out=out)
        check_sum(context, b, b, out)
    return Record(
        name,
        "us",
        "lower",
        summarise(our_times),
        summarise(peer_times, "torch.add + synchronize"),
        {
            "measured": f"blocking Client.add(out=) of {ELEMENTS} f32 torch CUDA tensors against torch.add(out=)"
            " + torch.cuda.synchronize()",
            **context.python_link(),
        },
        target=target,
    )


add(
    "blocking_tiny_add_c_shm",
    lambda c: run_c(c, "blocking_tiny_add_c_shm", "shm", 1.10),
    on_gpu=True,
    table=True,
)
add("blocking_tiny_add_c_socket", lambda c: run_c(c, "blocking_tiny_add_c_socket", "socket", None), on_gpu=True)
add(
    "blocking_tiny_add_python",
    lambda c: run_python(c, "blocking_tiny_add_python", 1.5),
    on_gpu=True,
    table=True,
)
# The same between processes that share the GPU at the same time.
add(
    "blocking_mps_tiny_add_c_shm",
    lambda c: run_c(c, "blocking_mps_tiny_add_c_shm", "shm", None),
    on_gpu=True,
    mps=True,
    table=True,
)
add(
    "blocking_mps_tiny_add_python",
    lambda c: run_python(c, "blocking_mps_tiny_add_python", None),
    on_gpu=True,
    mps=True,
    table=True,
)
