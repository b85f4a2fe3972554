"""The daemon's own kernel for products of 16 bits on Hopper GPUs against the best of cuBLASLt's that tuning finds, or its first choice
where tuning prefers another kernel. Both run in the daemon, in turns, on the same operands. CUPTI records the kernels' times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..calls import pipelined
from ..context import Context, Skipped
from ..cuda import Rotation, cache_note, sets_for
from ..record import Record, summarise_rate
from . import add, alternate
from .gemm_tuned import tune

SIDES = 4096, 8192
TARGET = 0.97


def run(context: Context, side: int) -> Record:
    if context.smoke:
        raise Skipped("the stand-in for a GPU is no Hopper")
    torch, client = context.torch, context.gpu_client()
    if torch.cuda.get_device_capability() != (9, 0):
        raise Skipped("the GPU is no Hopper")
    generator = torch.Generator(device="cuda").manual_seed(1)
    size = 3 * side * side * 2
    n_sets = sets_for(size)

    def operands() -> tuple[Any, Any, Any]:
        a, b = (torch.randn((side, side), device="cuda", generator=generator).bfloat16() for _ in range(2))
        return a, b, torch.full_like(a, float("nan"))

    sets = [operands() for _ in range(n_sets)]
    torch.cuda.synchronize()
    a, b, out = sets[0]
    tuned = tune(client, sets[0], "highest")[-1]
    library: dict[str, Any] = {} if tuned.best.variant == "cublaslt" else {"variant": "cublaslt"}
    client.run("gemm", a, b, out=out, variant="hopper", blocking=True)
    exact = a[:256].double() @ b.double()
    error = float((out[:256].double() - exact).norm() / exact.norm())
    del exact
    timers: set[str] = set()
    used: list[str] = []

    def times(rotation: Rotation, how: dict[str, Any]) -> Any:
        def measured(count: int) -> Iterable[float]:
            return pipelined(client, "gemm", rotation.take(count), ret_variant=used, timing="exact", ret_timers=timers, **how)

        return measured

    ours, peer = times(Rotation(sets), {"variant": "hopper"}), times(Rotation(sets), library)
    our_times, peer_times = alternate(context, ours, peer, warmup=max(3, n_sets))
    detail = {
        "measured": "CUPTI's times of the kernels in the daemon, of either kernel",
        "timer": "+".join(sorted(timers)),
        "cache": cache_note(size, n_sets),
        "variants": sorted(set(used)),
        "library": "the algorithm that tuning has chosen" if not library else "its first choice: tuning has chosen " + tuned.best.what,
        "chosen": tuned.best.what,
        "side": side,
        "error": error,
    }
    work = 2.0 * side**3
    name = "cuBLASLt, first choice" if library else "cuBLASLt, tuned"
    rates = summarise_rate(our_times, work), summarise_rate(peer_times, work, name)
    return Record(f"gemm_hopper_bf16_{side}", "GFLOP/s", "higher", *rates, detail, target=TARGET)


for _side in SIDES:
    add(f"gemm_hopper_bf16_{_side}", lambda c, side=_side: run(c, side), on_gpu=True, seconds=60)
