"""Ops as part of the caller's CUDA stream, thousands in a row, against the caller's own launches; and what torch's dispatcher adds."""

from __future__ import annotations

from ..context import Context, Skipped
from ..record import Record
from . import add
from .common import beside, check, client_with, in_a_row, of_program, of_the_caller, rounds, vectors

OPS, CHAIN_OPS, ROUNDS = 5000, 2000, 20
SUBMITTED = 64  # in a row before the stream is waited for: as many as the daemon takes without holding the client back
SIDES_C = {
    # our series, the peer's, what a sample is, the target
    "ordered_add_c_batch": ("batch", "launches", "kops_enqueue() in one batch", 2.0),
    "ordered_add_c_own": ("own", "launches", "kops_enqueue(), each ordered on its own", 3.5),
    "ordered_chain_c": ("chain", "chain_here", "launch, kops_enqueue(), launch, each reading what the last wrote", 1.5),
}


def run_c(context: Context) -> list[Record]:
    """Under MPS, many; without, where the GPU takes turns between the processes at every op, a few and without a target."""
    n_rounds, ops = (2, 50) if context.smoke else (ROUNDS, OPS if context.mps else 200)
    turns = ("--blocks", n_rounds, "--calls", 1, "--warmup", 1, "--again", 1, "--ops", ops)
    found = context.run_program("bench_gpu", "--work", "ordered", *turns, socket=context.gpu_daemon.socket_path)
    return [
        beside(
            name if context.mps else f"{name}_time_slicing",
            of_program(found[ours]),
            of_program(found[peer], "the same launches in one process" if "chain" in name else "in_process_launches"),
            f"{what}, {ops} in a row and cuStreamSynchronize, by the number of them; 1024 f32",
            target if context.mps else None,
            n="rounds",
        )
        for name, (ours, peer, what, target) in SIDES_C.items()
    ]


def run_python(context: Context) -> list[Record]:
    torch = context.torch
    ops, n_rounds = (20, 2) if context.smoke else (OPS, ROUNDS)
    a, b, out = vectors(context, 3)
    with client_with(context, "ordered", blocking=False) as client:
        sides = [
            in_a_row(context, ops, lambda: client.add(a, b, out=out)),
            in_a_row(context, ops, lambda: client.add(a, b, out=out), client.batch),
            in_a_row(context, ops, lambda: torch.add(a, b, out=out)),
        ]
        own, batch, eager = rounds(context, sides, calls=n_rounds, warmup=1)
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
    ops, n_rounds = (20, 2) if context.smoke else (CHAIN_OPS, ROUNDS)
    # Zeros stay zeros, however often they are added.
    a, b, c, d = (torch.full((1024,), 0.0, device="cuda") for _ in range(4))
    torch.cuda.synchronize()
    with client_with(context, "ordered", blocking=False) as client:

        def ours_call() -> None:
            torch.add(a, b, out=c)
            client.add(c, b, out=d)
            torch.add(d, b, out=a)

        def peer_call() -> None:
            torch.add(a, b, out=c)
            torch.add(c, b, out=d)
            torch.add(d, b, out=a)

        ours, peer = rounds(context, [in_a_row(context, ops, ours_call), in_a_row(context, ops, peer_call)], calls=n_rounds, warmup=1)
        client.synchronize()
        check(context, a, 0.0)
    measured = (
        f"torch.add, Client.add, torch.add (out=, each reads what the last wrote), {ops} times in a row and torch.cuda.synchronize(),"
        " by the number of times; 1024 f32"
    )
    peer_of = (peer, "three torch.add(out=)")
    return beside("ordered_chain_python", ours, peer_of, measured, 1.5, n="rounds", **context.python_link())


def run_torch_op(context: Context) -> Record:
    if context.smoke:
        raise Skipped("the stand-in for torch has no dispatcher")
    torch = context.torch
    import kops.torch

    a, b = vectors(context, 2)
    wanted = a.clone().requires_grad_()
    with client_with(context, "ordered", blocking=False) as client:
        kops.torch.use(client)
        try:
            calls = [lambda: torch.ops.kops.add(a, b), lambda: client.add(a, b), lambda: torch.ops.kops.add(wanted, b)]
            op, method, with_graph = rounds(context, [of_the_caller(context, SUBMITTED, call) for call in calls], calls=400)
            check(context, torch.ops.kops.add(a, b), 3.0)
            client.synchronize()
        finally:
            kops.torch.use(None)
    return beside(
        "torch_op_eager",
        op,
        (method, "Client.add"),
        "torch.ops.kops.add of two torch CUDA tensors of 1024 f32, ordered, against Client.add: the caller's time of"
        f" {SUBMITTED} calls in a row, by their number; the stream is waited for between the rounds",
        2.0,
        "same",
        n="rounds",
        requires_grad_p50=sorted(with_graph)[len(with_graph) // 2],
        torch=torch.__version__,
        **context.python_link(),
    )


add("ordered_c", run_c, on_gpu=True, mps=True, table=True)
add("ordered_c_time_slicing", run_c, on_gpu=True, table=True)
add("ordered_python", run_python, on_gpu=True, mps=True, table=True)
add("ordered_chain", run_chain, on_gpu=True, mps=True, table=True)
add("torch_op_eager", run_torch_op, on_gpu=True, mps=True, table=True)
