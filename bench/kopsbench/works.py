"""Pieces of work that several measures time: ops, users' kernels and programs, on operands that are torch's CUDA tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .context import Context
from .cuda import DTYPES
from .user_kernels import VECTOR_ADD

PROGRAM_OPS = 20
WARMEST = 10_000  # executions that a request may have


def operand(context: Context, shape: tuple[int, ...], dtype: str = "f32") -> Any:
    """Numbers from 0 to 1. The stand-in of torch makes ones, all of them f32."""
    torch = context.torch
    if context.smoke:
        return torch.full(shape, 1.0)
    return torch.rand(shape, device="cuda", dtype=torch.float32).to(getattr(torch, DTYPES[dtype]))


@dataclass
class Work:
    """What a client can do again and again."""

    row: str  # its name in the statistics
    # With timing=…: its Timings, or something else where that is False.
    call: Callable[[Any], Any]
    # Executes it (warmup, repeat) times in one request: the times of the repeats.
    repeat: Callable[[int, int], list[float]]

    def timed(self, timing: Any) -> Any:
        """The Timings of a call."""
        found = self.call(timing)
        return found[1] if isinstance(found, tuple) else found


@dataclass(frozen=True)
class Op:
    name: str
    shape: tuple[int, ...]
    inputs: int = 2
    dtype: str = "f32"
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def ready(self, context: Context, client: Any) -> Work:
        *inputs, out = (operand(context, self.shape, self.dtype) for _ in range(self.inputs + 1))
        context.torch.cuda.synchronize()
        method, attributes = getattr(client, self.name), dict(self.attributes)

        def repeat(warmup: int, times: int) -> list[float]:
            how = {"out": out, "warmup": warmup, "repeat": times, "conditions": False}
            return list(client.profile(self.name, *inputs, **how, **attributes).samples)

        return Work(self.name, lambda timing: method(*inputs, out=out, blocking=True, timing=timing, **attributes), repeat)


@dataclass(frozen=True)
class Kernel:
    """vector_add of so many elements, a kernel of a user's."""

    elements: int

    def ready(self, context: Context, client: Any) -> Work:
        arguments = (*(operand(context, (self.elements,)) for _ in range(3)), self.elements)
        context.torch.cuda.synchronize()
        kernel = VECTOR_ADD.declare(client)

        def repeat(warmup: int, times: int) -> list[float]:
            return list(kernel.profile(*arguments, warmup=warmup, repeat=times, conditions=False).samples)

        return Work(VECTOR_ADD.entry, lambda timing: kernel(*arguments, blocking=True, timing=timing), repeat)


@dataclass(frozen=True)
class Program:
    """A program of small adds, each of what the last one wrote."""

    elements: int

    def ready(self, context: Context, client: Any) -> Work:
        a, b, x, y = (operand(context, (self.elements,)) for _ in range(4))
        context.torch.cuda.synchronize()
        with client.program() as program:
            for i in range(PROGRAM_OPS):
                client.add(a if i == 0 else (y, x)[i % 2], b, out=(x, y)[i % 2])

        def repeat(warmup: int, times: int) -> list[float]:
            found = program.run(timing="exact" if "exact" in client.info.features else True, warmup=warmup, repeat=times)
            return list(found.samples) or [found.exec_us]

        return Work("", lambda timing: program.run(timing=timing, blocking=True), repeat)


Kind = Op | Kernel | Program


def gemm(n: int, dtype: str = "f32", **attributes: Any) -> Op:
    return Op("gemm", (n, n), dtype=dtype, attributes=attributes)
