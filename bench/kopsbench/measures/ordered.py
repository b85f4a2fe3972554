"""Ops and kernels as part of the caller's CUDA stream, thousands in a row, against the caller's own launches; what torch's dispatcher adds;
and blocking launches of a user's kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..context import Context, Skipped
from ..record import Record
from ..user_kernels import BLOCK, VECTOR_ADD, torch_kernel
from . import add
from .common import (
    ELEMENTS,
    OPS,
    ROUNDS,
    beside,
    check,
    client_with,
    in_a_row,
    in_rows,
    in_rows_by_program,
    of_program,
    of_the_caller,
    rounds,
    row_of,
    timed,
    vectors,
)

CHAIN_OPS = 2000
SUBMITTED = 64  # in a row before the stream is waited for: as many as the daemon takes without holding the client back
SIDES_C = {
    # our series, the peer's, what a sample is, the target
    "ordered_add_c_batch": ("batch", "launches", "kops_enqueue() in one batch", 2.0),
    "ordered_add_c_own": ("own", "launches", "kops_enqueue(), each ordered on its own", 3.5),
    "ordered_chain_c": ("chain", "chain_here", "launch, kops_enqueue(), launch, each reading what the last wrote", 1.5),
}


def run_c(context: Context) -> list[Record]:
    """Under MPS, many; without, where the GPU takes turns between the processes at every op, a few and without a target."""
    ops = 50 if context.smoke else OPS if context.mps else 200
    found = in_rows_by_program(context, "ordered", ops)
    records = []
    for name, (ours, peer, what, target) in SIDES_C.items():
        measured = f"{what}, {ops} in a row and cuStreamSynchronize, by the number of them; 1024 f32"
        theirs = of_program(found[peer], "the same launches in one process" if "chain" in name else "in_process_launches")
        name, target = (name, target) if context.mps else (f"{name}_time_slicing", None)
        records.append(beside(name, of_program(found[ours]), theirs, measured, target, n="rounds"))
    return records


def run_python(context: Context) -> list[Record]:
    torch, ops = context.torch, row_of(context)
    a, b, out = vectors(context, 3)
    with client_with(context, "ordered", blocking=False) as client:
        sides = [
            in_a_row(context, ops, lambda: client.add(a, b, out=out)),
            in_a_row(context, ops, lambda: client.add(a, b, out=out), client.batch),
            in_a_row(context, ops, lambda: torch.add(a, b, out=out)),
        ]
        own, batch, eager = rounds(context, sides, calls=2 if context.smoke else ROUNDS, warmup=1)
        client.add(a, a, out=out)
        client.synchronize()
        check(context, out, 2.0)
    measured = f"Client.add(out=) on the current stream, {ops} in a row and torch.cuda.synchronize(), by their number; 1024 f32"
    peer, link = (eager, "torch.add(out=)"), context.python_link()
    return [
        beside("ordered_add_python_own", own, peer, f"{measured}; each ordered on its own", 1.6, n="rounds", **link),
        beside("ordered_add_python_batch", batch, peer, f"{measured}; in one batch()", 1.1, n="rounds", **link),
    ]


def run_chain(context: Context) -> Record:
    torch = context.torch
    # Zeros stay zeros, however often they are added.
    a, b, c, d = (torch.full((1024,), 0.0, device="cuda") for _ in range(4))
    torch.cuda.synchronize()
    with client_with(context, "ordered", blocking=False) as client:

        def chain(middle: Callable[..., Any]) -> Callable[[], None]:
            def call() -> None:
                torch.add(a, b, out=c)
                middle(c, b, out=d)
                torch.add(d, b, out=a)

            return call

        ours, peer = in_rows(context, [chain(client.add), chain(torch.add)], CHAIN_OPS)
        client.synchronize()
        check(context, a, 0.0)
    measured = (
        f"torch.add, Client.add, torch.add (out=, each reads what the last wrote), {row_of(context, CHAIN_OPS)} times in a row and"
        " torch.cuda.synchronize(), by the number of times; 1024 f32"
    )
    peer_of = (peer, "three torch.add(out=)")
    return beside("ordered_chain_python", ours, peer_of, measured, 1.5, n="rounds", **context.python_link())


def need_torch(context: Context) -> Any:
    if context.smoke:
        raise Skipped("the stand-in for torch cannot do it")
    return context.torch


@contextmanager
def torch_uses(client: Any) -> Iterator[None]:
    import kops.torch

    kops.torch.use(client)
    try:
        yield
    finally:
        kops.torch.use(None)


def run_torch_op(context: Context) -> Record:
    torch = need_torch(context)
    a, b = vectors(context, 2)
    with client_with(context, "ordered", blocking=False) as client, torch_uses(client):
        calls = [lambda: torch.ops.kops.add(a, b), lambda: client.add(a, b)]
        op, method = rounds(context, [of_the_caller(context, SUBMITTED, call) for call in calls], calls=400)
        check(context, torch.ops.kops.add(a, b), 3.0)
        client.synchronize()
    measured = (
        "torch.ops.kops.add of two torch CUDA tensors of 1024 f32, ordered, against Client.add: the caller's time of"
        f" {SUBMITTED} calls in a row, by their number; the stream is waited for between the rounds"
    )
    detail = {"n": "rounds", "torch": torch.__version__, **context.python_link()}
    return beside("torch_op_eager", op, (method, "Client.add"), measured, 2.0, "same", **detail)


add("ordered_c", run_c, on_gpu=True, mps=True, table=True)
add("ordered_c_time_slicing", run_c, on_gpu=True, table=True)
add("ordered_python", run_python, on_gpu=True, mps=True, table=True)
add("ordered_chain", run_chain, on_gpu=True, mps=True, table=True)
add("torch_op_eager", run_torch_op, on_gpu=True, mps=True, table=True)

# ---- a user's kernel, against a built-in op by the same way and against torch's own launch ----

TORCH = "torch.cuda._compile_kernel's launch"


def torch_call(context: Context, c: Any, a: Any, b: Any) -> Callable[[], Any] | str:
    """torch's launch of the same kernel, or why there is none."""
    if context.smoke:
        return "the stand-in has no torch.cuda._compile_kernel"
    try:
        kernel = torch_kernel(context.torch, VECTOR_ADD.source, VECTOR_ADD.entry)
    except Skipped as reason:
        return str(reason)
    return lambda: kernel((-(-ELEMENTS // BLOCK), 1, 1), (BLOCK, 1, 1), (c, a, b, ELEMENTS))


KERNEL = "vector_add(c, a, b, n) of 1024 f32"


def run_kernel(context: Context) -> list[Record]:
    a, b, c = vectors(context, 3)
    by_torch = torch_call(context, c, a, b)
    with client_with(context, "kernels", blocking=False) as client:
        kernel = VECTOR_ADD.declare(client)
        calls = [lambda: kernel(c, a, b, ELEMENTS), lambda: client.add(a, b, out=c), *([by_torch] if callable(by_torch) else [])]
        ours, builtin, *theirs = in_rows(context, calls)
        kernel(c, b, b, ELEMENTS)
        client.synchronize()
        check(context, c, 4.0)
    name, measured = "kernel_launch_python", f"{KERNEL} on the current stream, many in a row and torch.cuda.synchronize(), by their number"
    detail: dict[str, Any] = {"n": "rounds", "in_a_row": row_of(context), **context.python_link()}
    lacking: dict[str, Any] = {} if theirs else {"no_peer": by_torch}
    return [
        beside(f"{name}_vs_builtin", ours, (builtin, "Client.add(out=)"), measured, 1.1, **detail),
        beside(f"{name}_vs_torch_nvrtc", ours, (theirs[0], TORCH) if theirs else None, measured, 0.7, **detail, **lacking),
    ]


def run_kernel_blocking(context: Context) -> Record:
    a, b, c = vectors(context, 3)
    with client_with(context, "kernels") as client:
        kernel = VECTOR_ADD.declare(client)
        sides = [timed(lambda: kernel(c, a, b, ELEMENTS)), timed(lambda: client.add(a, b, out=c))]
        ours, builtin = rounds(context, sides, calls=context.calls * 5)
        kernel(c, b, b, ELEMENTS)
        check(context, c, 4.0)
    peer, measured = (builtin, "blocking Client.add(out=)"), f"{KERNEL} torch CUDA tensors, blocking"
    return beside("kernel_launch_blocking_python_vs_builtin", ours, peer, measured, 1.1, **context.python_link())


add("kernel_launch_python", run_kernel, on_gpu=True, mps=True, table=True)
add("kernel_launch_blocking_python", run_kernel_blocking, on_gpu=True, table=True)
