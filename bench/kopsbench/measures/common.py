"""What measures have in common: ways to take samples, turns of several sides, operands, and records of what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from time import perf_counter_ns
from typing import Any

from ..context import Context, Skipped
from ..record import Better, Record, Summary, summarise, summarise_rate

ELEMENTS = 1024  # of a small vector
OPS, ROUNDS = 5000, 20  # in a row, by default
A_SECOND = 1e9  # for summarise_rate(): calls, not billions of something

Samples = Callable[[int], Iterable[float]]  # so many, in microseconds


# ---- turns ----


def rounds(context: Context, sides: Sequence[Samples], *, calls: int | None = None, warmup: int | None = None) -> list[list[float]]:
    """The samples of each side, in turns of blocks.

    Blocks and not single calls: two processes that take turns on one GPU pay a context switch at every turn."""
    total = calls or context.calls
    block = max(1, -(-total // context.blocks))
    samples: list[list[float]] = [[] for _ in sides]
    for side in sides:
        list(side(block if warmup is None else warmup))
    while len(samples[0]) < total:
        for side, its in zip(sides, samples, strict=True):
            # The first calls after a turn find cold caches and, without MPS, a GPU that belongs to the other process.
            list(side(2))
            its += side(block)
    return samples


# ---- samples ----


def timed(call: Callable[[], Any]) -> Samples:
    """Durations of single calls."""

    def samples(n: int) -> Iterator[float]:
        for _ in range(n):
            start = perf_counter_ns()
            call()
            yield (perf_counter_ns() - start) * 1e-3

    return samples


def in_a_row(context: Context, n: int, call: Callable[[], Any], scope: Callable[[], Any] = nullcontext) -> Samples:
    """Durations of n calls, in a `scope()`, and a synchronisation, by n."""

    def many() -> None:
        with scope():
            for _ in range(n):
                call()
        context.torch.cuda.synchronize()

    return lambda count: (us / n for us in timed(many)(count))


def row_of(context: Context, ops: int = OPS) -> int:
    """Calls in a row; a few where measures are only tried out."""
    return 20 if context.smoke else ops


def in_rows(context: Context, calls: Sequence[Callable[[], Any]], ops: int = OPS) -> list[list[float]]:
    """Rounds of each call, so many in a row."""
    sides = [in_a_row(context, row_of(context, ops), call) for call in calls]
    return rounds(context, sides, calls=2 if context.smoke else ROUNDS, warmup=1)


def of_the_caller(context: Context, n: int, call: Callable[[], Any]) -> Samples:
    """The caller's time of n calls in a row, by n. The stream is waited for between the samples."""

    def samples(count: int) -> Iterator[float]:
        for _ in range(count):
            start = perf_counter_ns()
            for _ in range(n):
                call()
            elapsed = perf_counter_ns() - start
            context.torch.cuda.synchronize()
            yield elapsed * 1e-3 / n

    return samples


def and_wait(context: Context, call: Callable[[], Any]) -> Callable[[], None]:
    """The call, then torch.cuda.synchronize()."""

    def both() -> None:
        call()
        context.torch.cuda.synchronize()

    return both


# ---- operands ----


def vectors(context: Context, n: int) -> tuple[Any, ...]:
    """Small tensors of 1, 2, 3, …"""
    made = tuple(context.torch.full((ELEMENTS,), float(i + 1), device="cuda") for i in range(n))
    context.torch.cuda.synchronize()
    return made


def check(context: Context, out: Any, value: float) -> None:
    """A number is worth nothing when the result is wrong."""
    context.torch.cuda.synchronize()
    if not context.torch.equal(out, context.torch.full(tuple(out.shape), value, device="cuda")):
        raise RuntimeError("the result is wrong")


def client_with(context: Context, feature: str, *, blocking: bool = True, **options: Any) -> Any:
    """A client of a daemon that has a feature, or Skipped."""
    client = context.connect(blocking=blocking, **options)
    if feature in client.info.features:
        return client
    client.close()
    raise Skipped(f"the daemon has no feature {feature}: it has no CUDA device or no NVRTC, or its policy says so")


def many_calls(context: Context, factor: int, smoke: int = 4) -> int:
    """Calls of a program's block, `factor` times as many as others make in all."""
    return smoke if context.smoke else max(context.calls, 200) * factor // context.blocks


def by_program(context: Context, work: str, **options: Any) -> dict[str, Any]:
    """The series of bench_gpu, beside gpu_daemon."""
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    return context.run_program("bench_gpu", "--work", work, *words, socket=context.gpu_daemon.socket_path)


def in_rows_by_program(context: Context, work: str, ops: int, n_rounds: int = ROUNDS) -> dict[str, Any]:
    """The series of rounds of `ops` calls in a row."""
    return by_program(context, work, blocks=2 if context.smoke else n_rounds, calls=1, warmup=1, again=1, ops=ops)


# ---- records ----


def of_program(found: dict[str, Any], name: str | None = None) -> Summary:
    """Of a series that a program printed."""
    return Summary(found["p50"], found["p99"], found["n"], name, found["max"])


def beside(
    name: str,
    ours: Summary | Sequence[float],
    peer: tuple[Sequence[float], str] | Summary | None,
    measured: str,
    target: float | None = None,
    better: Better = "lower",
    **detail: Any,
) -> Record:
    """Microseconds of ours and of a peer, which are samples or summaries."""
    mine = ours if isinstance(ours, Summary) else summarise(ours)
    theirs = summarise(*peer) if isinstance(peer, tuple) else peer
    return Record(name, "us", better, mine, theirs, {"measured": measured, **detail}, target)


def rate_beside(
    name: str, ours: Sequence[float], peer: tuple[Sequence[float], str] | None, measured: str, target: float | None = None, **detail: Any
) -> Record:
    """Calls a second, of microseconds a call."""
    mine, theirs = summarise_rate(ours, A_SECOND), summarise_rate(peer[0], A_SECOND, peer[1]) if peer else None
    return Record(name, "calls/s", "higher", mine, theirs, {"measured": measured, **detail}, target)
