"""A launch of a user's kernel by the daemon from Python, against a built-in op by the same way and against torch's own launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..context import Context, Skipped
from ..record import Record
from ..user_kernels import BLOCK, VECTOR_ADD, torch_kernel
from . import add
from .common import ELEMENTS, Samples, and_wait, beside, check, client_with, in_a_row, rounds, timed, vectors
from .ordered import OPS, ROUNDS

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


def run(
    context: Context, name: str, blocking: bool, targets: tuple[float, float | None], names: tuple[str, str], measured: str
) -> list[Record]:
    a, b, c = vectors(context, 3)
    by_torch = torch_call(context, c, a, b)
    ops, n_rounds = (20, 2) if context.smoke else (OPS, ROUNDS)
    with client_with(context, "kernels", blocking=blocking) as client:
        kernel = VECTOR_ADD.declare(client)
        calls: Sequence[Callable[[], Any]] = [lambda: kernel(c, a, b, ELEMENTS), lambda: client.add(a, b, out=c)]
        if blocking:
            sides: list[Samples] = [timed(call) for call in calls]
            sides += [timed(and_wait(context, by_torch))] if callable(by_torch) else []
            times = rounds(context, sides, calls=context.calls * 5)
        else:
            sides = [in_a_row(context, ops, call) for call in [*calls, *([by_torch] if callable(by_torch) else [])]]
            times = rounds(context, sides, calls=n_rounds, warmup=1)
        kernel(c, b, b, ELEMENTS)
        client.synchronize()
        check(context, c, 4.0)
    detail: dict[str, Any] = {**({} if blocking else {"n": "rounds", "in_a_row": ops}), **context.python_link()}
    ours, builtin, *theirs = times
    lacking: dict[str, Any] = {} if theirs else {"no_peer": by_torch}
    return [
        beside(f"{name}_vs_builtin", ours, (builtin, names[0]), measured, targets[0], **detail),
        beside(f"{name}_vs_torch_nvrtc", ours, (theirs[0], names[1]) if theirs else None, measured, targets[1], **detail, **lacking),
    ]


add(
    "kernel_launch_python", run, "kernel_launch_python", False, (1.1, 0.7), ("Client.add(out=)", TORCH),
    "vector_add(c, a, b, n) of 1024 f32 on the current stream, many in a row and torch.cuda.synchronize(), by their number",
    on_gpu=True, mps=True, table=True,
)  # fmt: skip
add(
    "kernel_launch_blocking_python", run, "kernel_launch_blocking_python", True, (1.1, None),
    ("blocking Client.add(out=)", f"{TORCH} + synchronize"), "vector_add(c, a, b, n) of 1024 f32 torch CUDA tensors, blocking",
    on_gpu=True, table=True,
)  # fmt: skip
