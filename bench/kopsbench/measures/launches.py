"""A launch of a user's kernel from Python, against a built-in op by the same way and against torch's own launch."""

from __future__ import annotations

from typing import Any

from ..context import Context, Skipped
from ..record import Record, summarise
from ..user_kernels import BLOCK, VECTOR_ADD, kernel_client, torch_kernel
from . import add, rounds
from .blocking import ELEMENTS, timed, vectors
from .ordered import OPS, PYTHON_ROUNDS, check, in_a_row

GRID = (-(-ELEMENTS // BLOCK), 1, 1)


def torch_call(context: Context, c: Any, a: Any, b: Any) -> Any:
    """torch's launch of the same kernel, or why there is none."""
    if context.smoke:
        return "the stand-in has no torch.cuda._compile_kernel"
    try:
        kernel = torch_kernel(context.torch, VECTOR_ADD.source, VECTOR_ADD.entry)
    except Skipped as reason:
        return str(reason)
    arguments = (c, a, b, ELEMENTS)
    return lambda: kernel(GRID, (BLOCK, 1, 1), arguments)


def records(
    name: str, detail: dict[str, Any], times: list[list[float]], names: tuple[str, str], targets: Any, lacking: Any
) -> list[Record]:
    """Ours against the built-in op, and against torch's launch where there is one."""
    ours, builtin, *by_torch = times
    made = [
        Record(f"{name}_vs_builtin", "us", "lower", summarise(ours), summarise(builtin, names[0]), detail, target=targets[0]),
        Record(
            f"{name}_vs_torch_nvrtc",
            "us",
            "lower",
            summarise(ours),
            summarise(by_torch[0], names[1]) if by_torch else None,
            {**detail, **({} if by_torch else {"no_peer": lacking})},
            target=targets[1],
        ),
    ]
    return made


def run_rate(context: Context) -> list[Record]:
    ops, n_rounds = (20, 2) if context.smoke else (OPS, PYTHON_ROUNDS)
    a, b, c = vectors(context, 3)
    by_torch = torch_call(context, c, a, b)
    with kernel_client(context, blocking=False) as client:
        if "ordered" not in client.info.features:
            raise Skipped("the daemon has no ordered calls")
        kernel = VECTOR_ADD.declare(client)
        sides = [
            in_a_row(context, ops, lambda: kernel(c, a, b, ELEMENTS)),
            in_a_row(context, ops, lambda: client.add(a, b, out=c)),
            *([in_a_row(context, ops, by_torch)] if callable(by_torch) else []),
        ]
        times = rounds(context, sides, calls=n_rounds, warmup=1)
        kernel(c, b, b, ELEMENTS)
        client.synchronize()
        check(context, c, 4.0)
    detail = {
        "measured": f"vector_add(c, a, b, n) of 1024 f32 on the current stream, {ops} in a row and torch.cuda.synchronize(), by"
        " their number",
        "n": "rounds",
        **context.python_link(),
    }
    peers = ("Client.add(out=)", "torch.cuda._compile_kernel's launch")
    return records("kernel_launch_python", detail, times, peers, (1.1, 0.7), by_torch)


def run_latency(context: Context) -> list[Record]:
    torch = context.torch
    a, b, c = vectors(context, 3)
    by_torch = torch_call(context, c, a, b)

    def torch_blocking() -> None:
        by_torch()
        torch.cuda.synchronize()

    with kernel_client(context) as client:
        kernel = VECTOR_ADD.declare(client)
        sides = [
            timed(lambda: kernel(c, a, b, ELEMENTS)),
            timed(lambda: client.add(a, b, out=c)),
            *([timed(torch_blocking)] if callable(by_torch) else []),
        ]
        times = rounds(context, sides, calls=context.calls * 5)
        kernel(c, b, b, ELEMENTS)
        check(context, c, 4.0)
    detail = {"measured": "vector_add(c, a, b, n) of 1024 f32 torch CUDA tensors, blocking", **context.python_link()}
    peers = ("blocking Client.add(out=)", "torch.cuda._compile_kernel's launch + synchronize")
    return records("kernel_launch_blocking_python", detail, times, peers, (1.1, None), by_torch)


add("kernel_launch_python", run_rate, on_gpu=True, mps=True, table=True)
add("kernel_launch_blocking_python", run_latency, on_gpu=True, table=True)
