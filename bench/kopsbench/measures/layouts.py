"""Elementwise ops on the GPU over layouts, sizes and dtypes, and a fused op, against torch's kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..calls import profile
from ..context import Context
from ..cuda import kernel_times
from ..record import Record, summarise_rate
from . import add, alternate

MIB = 1 << 20
TENSOR_BYTES = 256 * MIB
DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64", "i8": "int8", "i32": "int32", "i64": "int64"}
LAYOUT_TARGET, SIZE_TARGET, FUSED_TARGET = 1.1, 1.0, 1.6
MEASURED = "gpu_us of repeated executions in the daemon against CUPTI's times of the kernels of torch's calls"


class Operands(NamedTuple):
    inputs: tuple[Any, ...]
    out: Any


class Maker:
    """Tensors of random numbers, of one dtype, that begin some elements into memory of their own."""

    def __init__(self, context: Context, dtype: str) -> None:
        self.torch = context.torch
        self.dtype = getattr(self.torch, DTYPES[dtype])
        self.size = self.torch.empty(0, dtype=self.dtype).element_size()
        self.generator = self.torch.Generator(device="cuda").manual_seed(1)
        self.smoke = context.smoke

    def flat(self, count: int, skip: int = 0) -> Any:
        made = self.torch.empty(count + skip, device="cuda", dtype=self.dtype)
        if self.dtype.is_floating_point:
            made.copy_(self.torch.rand(count + skip, device="cuda", generator=self.generator))
        else:
            made.random_(-100, 100, generator=self.generator)
        return made[skip:]

    def matrix(self, rows: int, columns: int) -> Any:
        return self.flat(rows * columns).view(rows, columns)

    def count(self, tensor_bytes: int) -> int:
        return (MIB if self.smoke else tensor_bytes) // self.size

    def sides(self) -> tuple[int, int]:
        rows = 512 if self.smoke else 8192
        return rows, self.count(TENSOR_BYTES) // rows


def offsets(make: Maker) -> Operands:
    count = make.count(TENSOR_BYTES)
    return Operands((make.flat(count, 1), make.flat(count, 3)), make.flat(count))


def row(make: Maker) -> Operands:
    m, n = make.sides()
    return Operands((make.matrix(m, n), make.flat(n)), make.matrix(m, n))


def column(make: Maker) -> Operands:
    m, n = make.sides()
    return Operands((make.matrix(m, n), make.matrix(m, 1)), make.matrix(m, n))


def slices(make: Maker) -> Operands:
    """Parts of wider rows that begin at different places."""
    m, n = make.sides()
    return Operands((make.matrix(m, n)[:, 1 : n - 7], make.matrix(m, n)[:, 3 : n - 5]), make.matrix(m, n)[:, : n - 8])


def transposed(make: Maker) -> Operands:
    m, n = make.sides()
    return Operands((make.matrix(m, n), make.matrix(n, m).t()), make.matrix(m, n))


def transposed_odd(make: Maker) -> Operands:
    m, n = make.sides()
    return Operands((make.matrix(m - 1, n - 1), make.matrix(n - 1, m - 1).t()), make.matrix(m - 1, n - 1))


def transposed_alone(make: Maker) -> Operands:
    m, n = make.sides()
    return Operands((make.matrix(n, m).t(),), make.matrix(m, n))


LAYOUTS: dict[str, Callable[[Maker], Operands]] = {
    make.__name__: make for make in (offsets, row, column, slices, transposed, transposed_odd, transposed_alone)
}


def contiguous(inputs: int, tensor_bytes: int) -> Callable[[Maker], Operands]:
    def make(maker: Maker) -> Operands:
        count = maker.count(tensor_bytes)
        return Operands(tuple(maker.flat(count) for _ in range(inputs)), maker.flat(count))

    return make


def peer_of(torch: Any, op: str, operands: Operands) -> tuple[str, Callable[[], Any]]:
    """What torch calls it, and the call: of a kernel for each op, or of several where operands are 4 GiB."""
    a, b, out = operands.inputs[0], operands.inputs[-1], operands.out
    if op == "add":
        return "torch.add(out=)", lambda: torch.add(a, b, out=out)
    if op == "square":
        return "torch.mul(out=)", lambda: torch.mul(a, a, out=out)
    return "torch.add(out=) and torch.mul(out=)", lambda: torch.mul(torch.add(a, b, out=out), out, out=out)


def moved(tensor: Any) -> int:
    """Bytes of a tensor's elements; what is repeated is there once."""
    return int(tensor.numel() * tensor.element_size())


def run(context: Context, name: str, op: str, dtype: str, make: Callable[[Maker], Operands], target: float) -> Record:
    torch = context.torch
    client = context.gpu_client()
    operands = make(Maker(context, dtype))
    peer_name, peer_call = peer_of(torch, op, operands)
    torch.cuda.synchronize()
    variant: list[str] = []

    def ours(n: int) -> Iterable[float]:
        return profile(client, op, operands.inputs, operands.out, repeat=n, ret_variant=variant)

    def peer(n: int) -> Iterable[float]:
        return kernel_times(torch, [peer_call] * n, each=None, gaps=False)

    our_times, peer_times = alternate(context, ours, peer)
    bytes_moved = sum(map(moved, operands.inputs)) + moved(operands.out)
    return Record(
        name,
        "GB/s",
        "higher",
        summarise_rate(our_times, bytes_moved),
        summarise_rate(peer_times, bytes_moved, peer_name),
        {"measured": f"{MEASURED}; bytes of inputs and output", "variant": variant[-1], "bytes": bytes_moved},
        target=target,
    )


def declare(name: str, op: str, dtype: str, make: Callable[[Maker], Operands], target: float) -> None:
    add(name, lambda context: run(context, name, op, dtype, make, target), on_gpu=True)


for _layout, _make in LAYOUTS.items():
    for _dtype in ("f32", "f16", "bf16", "f64", "i8", "i32"):
        declare(f"layout_{_layout}_{_dtype}", "square" if _make is transposed_alone else "add", _dtype, _make, LAYOUT_TARGET)
for _dtype in ("f32", "f16", "bf16", "f64", "i32"):
    declare(f"fused_add_square_{_dtype}", "add_square", _dtype, contiguous(2, TENSOR_BYTES), FUSED_TARGET)
for _op, _inputs in (("add", 2), ("square", 1)):
    for _mib in (256, 1024, 4096):
        for _dtype in DTYPES:
            declare(f"size_{_mib}_{_op}_{_dtype}", _op, _dtype, contiguous(_inputs, _mib * MIB), SIZE_TARGET)
