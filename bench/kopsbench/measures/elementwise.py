"""Bandwidth of add and square on the GPU against torch's, at 1 GiB a tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..calls import profile
from ..context import Context
from ..cuda import DTYPES, kernel_times
from ..record import Record, summarise_rate
from . import add, alternate

TENSOR_BYTES = 1 << 30
TARGET = 0.97


def run(context: Context, op: str, dtype: str) -> Record:
    torch = context.torch
    client = context.gpu_client()
    torch_dtype = getattr(torch, DTYPES[dtype])
    count = TENSOR_BYTES // torch.empty(0, dtype=torch_dtype).element_size()
    generator = torch.Generator(device="cuda").manual_seed(1)

    def random() -> Any:
        return torch.rand(count, device="cuda", generator=generator, dtype=torch.float32).to(torch_dtype)

    inputs = tuple(random() for _ in range(2 if op == "add" else 1))
    out = torch.empty(count, device="cuda", dtype=torch_dtype)
    peer_call: Callable[[], None] = {
        "add": lambda: torch.add(inputs[0], inputs[-1], out=out),
        "square": lambda: torch.mul(inputs[0], inputs[0], out=out),
    }[op]
    torch.cuda.synchronize()
    variant: list[str] = []

    def ours(n: int) -> Iterable[float]:
        return profile(client, op, inputs, out, repeat=n, ret_variant=variant)

    our_times, peer_times = alternate(context, ours, lambda n: kernel_times(torch, [peer_call] * n))
    moved = TENSOR_BYTES * (len(inputs) + 1)
    return Record(
        f"{op}_gbps_{dtype}",
        "GB/s",
        "higher",
        summarise_rate(our_times, moved),
        summarise_rate(peer_times, moved, "torch.add(out=)" if op == "add" else "torch.mul(out=)"),
        {
            "measured": "gpu_us of repeated executions in the daemon against CUPTI's times of the kernels of torch's calls;"
            " bytes of inputs and output at 1 GiB each",
            "variant": variant[-1],
        },
        target=TARGET,
    )


for _op in ("add", "square"):
    for _dtype in DTYPES:
        add(f"{_op}_gbps_{_dtype}", lambda c, o=_op, d=_dtype: run(c, o, d), on_gpu=True)
