"""Ops as part of the caller's CUDA stream, thousands in a row, against the caller's own launches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any

from ..context import Context, Skipped
from ..record import Record, summarise
from . import add, rounds
from .blocking import vectors
from .noop import summary

OPS = 5000
CHAIN_OPS = 2000
C_ROUNDS, PYTHON_ROUNDS = 20, 20

SIDES_C = {
    # our series, the peer's, what a sample is, the target
    "ordered_add_c_batch": ("batch", "launches", "kops_enqueue() in one batch", 2.0),
    "ordered_add_c_own": ("own", "launches", "kops_enqueue(), each ordered on its own", 3.5),
    "ordered_chain_c": ("chain", "chain_here", "launch, kops_enqueue(), launch, each reading what the last wrote", 1.5),
}


def run_c(context: Context) -> list[Record]:
    """Under MPS, many; without, where the GPU takes turns between the processes at every op, a few and without a target."""
    n_rounds, ops = (C_ROUNDS, OPS) if context.mps else (5, 200)
    if context.smoke:
        n_rounds, ops = 2, 50
    found = context.run_program("bench_ordered", "--rounds", n_rounds, "--ops", ops, socket=context.gpu_daemon.socket_path)
    return [
        Record(
            name if context.mps else f"{name}_time_slicing",
            "us",
            "lower",
            summary(found[ours]),
            summary(found[peer], "the same launches in one process" if "chain" in name else "in_process_launches"),
            {
                "measured": f"{what}, {ops} in a row and cuStreamSynchronize, by the number of them; 1024 f32",
                "n": "rounds",
            },
            target=target if context.mps else None,
        )
        for name, (ours, peer, what, target) in SIDES_C.items()
    ]


def in_a_row(context: Context, n: int, call: Callable[[], Any], scope: Callable[[], Any] | None = None) -> Any:
    """Samples of microseconds a call: n calls and a synchronisation."""

    def samples(count: int) -> Iterator[float]:
        for _ in range(count):
            start = perf_counter_ns()
            if scope is None:
                for _ in range(n):
                    call()
            else:
                with scope():
                    for _ in range(n):
                        call()
            context.torch.cuda.synchronize()
            yield (perf_counter_ns() - start) * 1e-3 / n

    return samples


def ordered_client(context: Context) -> Any:
    client = context.connect(blocking=False)
    if "ordered" in client.info.features:
        return client
    client.close()
    raise Skipped("the daemon has no ordered calls")


def check(context: Context, out: Any, value: float) -> None:
    context.torch.cuda.synchronize()
    if not context.torch.equal(out, context.torch.full(tuple(out.shape), value, device="cuda")):
        raise RuntimeError("the result is wrong")


def run_python(context: Context) -> list[Record]:
    torch = context.torch
    ops, n_rounds = (20, 2) if context.smoke else (OPS, PYTHON_ROUNDS)
    a, b, out = vectors(context, 3)
    with ordered_client(context) as client:

        def ours_call() -> None:
            client.add(a, b, out=out)

        def peer_call() -> None:
            torch.add(a, b, out=out)

        own, batch, eager = rounds(
            context,
            [
                in_a_row(context, ops, ours_call),
                in_a_row(context, ops, ours_call, client.batch),
                in_a_row(context, ops, peer_call),
            ],
            calls=n_rounds,
            warmup=1,
        )
        client.add(a, a, out=out)
        client.synchronize()
        check(context, out, 2.0)
    measured = f"Client.add(out=) on the current stream, {ops} in a row and torch.cuda.synchronize(), by their number"
    return [
        Record(
            f"ordered_add_python_{name}",
            "us",
            "lower",
            summarise(times),
            summarise(eager, "torch.add(out=)"),
            {"measured": f"{measured}; {how}; 1024 f32", "n": "rounds", **context.python_link()},
            target=target,
        )
        for name, times, how, target in (
            ("own", own, "each ordered on its own", 1.6),
            ("batch", batch, "in one batch()", 1.1),
        )
    ]


def run_chain(context: Context) -> Record:
    torch = context.torch
    ops, n_rounds = (20, 2) if context.smoke else (CHAIN_OPS, PYTHON_ROUNDS)
    # Zeros stay zeros, however often they are added.
    a, b, c, d = (torch.full((1024,), 0.0, device="cuda") for _ in range(4))
    torch.cuda.synchronize()
    with ordered_client(context) as client:

        def ours_call() -> None:
            torch.add(a, b, out=c)
            client.add(c, b, out=d)
            torch.add(d, b, out=a)

        def peer_call() -> None:
            torch.add(a, b, out=c)
            torch.add(c, b, out=d)
            torch.add(d, b, out=a)

        ours, peer = rounds(
            context,
            [in_a_row(context, ops, ours_call), in_a_row(context, ops, peer_call)],
            calls=n_rounds,
            warmup=1,
        )
        client.synchronize()
        check(context, a, 0.0)
    return Record(
        "ordered_chain_python",
        "us",
        "lower",
        summarise(ours),
        summarise(peer, "three torch.add(out=)"),
        {
            "measured": f"torch.add, Client.add, torch.add (out=, each reads what the last wrote), {ops} times in a row and"
            " torch.cuda.synchronize(), by the number of times; 1024 f32",
            "n": "rounds",
            **context.python_link(),
        },
        target=1.5,
    )


add("ordered_c", run_c, on_gpu=True, mps=True, table=True)
add("ordered_c_time_slicing", run_c, on_gpu=True, table=True)
add("ordered_python", run_python, on_gpu=True, mps=True, table=True)
add("ordered_chain", run_chain, on_gpu=True, mps=True, table=True)
