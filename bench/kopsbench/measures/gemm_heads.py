"""Products of many matrices whose batch no single stride describes: the heads of attention, [batch, rows, heads, width] seen as
[batch, heads, rows, width], against torch.matmul on the same views. Both sides' times are CUPTI's records, of a product's first
kernel to its last, copies of operands included."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..calls import pipelined
from ..context import Context, Skipped
from ..cuda import DTYPES, kernel_times
from ..record import Record, summarise_rate
from . import add, alternate

BATCH, HEADS, ROWS, WIDTH = 32, 32, 512, 64
TARGET = 1.0


def run(context: Context, dtype: str) -> Record:
    if context.smoke:
        raise Skipped("the stand-in for torch has no views")
    torch, client = context.torch, context.gpu_client()
    generator = torch.Generator(device="cuda").manual_seed(1)

    def heads() -> Any:
        made = torch.randn((BATCH, ROWS, HEADS, WIDTH), device="cuda", generator=generator)
        return made.to(getattr(torch, DTYPES[dtype])).transpose(1, 2)

    query, key = heads(), heads().transpose(2, 3)
    out = torch.empty((BATCH, HEADS, ROWS, ROWS), device="cuda", dtype=query.dtype)
    exact = query.double() @ key.double()
    client.gemm(query, key, out=out)
    error = float((out.double() - exact).norm() / exact.norm())
    del exact
    used: list[str] = []
    timers: set[str] = set()

    def ours(count: int) -> Iterable[float]:
        return pipelined(client, "gemm", [(query, key, out)] * count, ret_variant=used, timing="exact", ret_timers=timers)

    def peer(count: int) -> Iterable[float]:
        return kernel_times(torch, [lambda: torch.matmul(query, key)] * count, each=None)

    our_times, peer_times = alternate(context, ours, peer, warmup=3)
    work = 2.0 * BATCH * HEADS * ROWS * ROWS * WIDTH
    detail = {
        "measured": "CUPTI's times of the kernels in the daemon against CUPTI's times of the kernels of torch.matmul",
        "timer": "+".join(sorted(timers)),
        "variant": used[-1],
        "batch": BATCH,
        "heads": HEADS,
        "rows": ROWS,
        "width": WIDTH,
        "error": error,
    }
    rates = summarise_rate(our_times, work), summarise_rate(peer_times, work, "torch.matmul")
    return Record(f"gemm_heads_{dtype}", "GFLOP/s", "higher", *rates, detail, target=TARGET)


for _dtype in ("bf16", "f32"):
    add(f"gemm_heads_{_dtype}", lambda c, dtype=_dtype: run(c, dtype), on_gpu=True, seconds=60)
