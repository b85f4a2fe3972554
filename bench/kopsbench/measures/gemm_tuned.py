"""gemm as tuning has chosen it, against torch.mm: kernel time, and how long a tuning takes. Both sides' times are CUPTI's
records of the kernels: a product of several kernels is from the first's begin to the last's end. What a tuning had no time for
the next one tries: the products are measured when all was tried."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from ..calls import pipelined
from ..context import Context, Skipped
from ..cuda import DTYPES, Rotation, cache_note, kernel_times, sets_for
from ..record import Record, summarise, summarise_rate
from . import add, alternate

# (m, n, k)
SHAPES = [
    (64, 64, 64), (256, 256, 256), (640, 640, 640), (1000, 1000, 1000), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096),
    (4097, 4097, 4097), (8192, 8192, 8192), (16, 4096, 4096), (128, 8192, 8192), (8192, 128, 8192), (32768, 512, 512),
    (512, 512, 65536),
]  # fmt: skip
KINDS = {"f32": ("f32", "highest"), "tf32": ("f32", "medium"), "bf16": ("bf16", "highest"), "f16": ("f16", "highest"),
         "f64": ("f64", "highest")}  # fmt: skip
TARGETS = {"f32_256": 1.4, "f32_16x4096x4096": 1.7, "bf16_4097": 3.5, "tf32_4097": 1.8}  # where more is wanted than elsewhere
TARGET, GEOMEAN_TARGET, TUNING_TARGET_US = 0.99, 1.08, 1e6
MOST_TUNINGS = 10  # of a shape, until all candidates were tried


def name_of(shape: tuple[int, int, int]) -> str:
    m, n, k = shape
    return str(m) if m == n == k else f"{m}x{n}x{k}"


def shapes(context: Context) -> list[tuple[int, int, int]]:
    """Those of `--shapes`; all without it."""
    known = {name_of(shape): shape for shape in SHAPES}
    unknown = set(context.shapes) - set(known)
    if unknown:
        raise Skipped(f"gemm_tuned has no shape {', '.join(sorted(unknown))}; it has {', '.join(known)}")
    return [known[name] for name in context.shapes] or (SHAPES[:2] if context.smoke else SHAPES)


def tune(client: Any, operands: tuple[Any, Any, Any], precision: str) -> list[Any]:
    """What each tuning of the shape has said."""
    said: list[Any] = []
    while len(said) < MOST_TUNINGS:
        said.append(client.tune("gemm", operands[0], operands[1], out=operands[2], precision=precision))
        if not said[-1].goes_on and (said[-1].tried is None or said[-1].tried >= len(said[-1].candidates)):
            break
    return said


def one(context: Context, kind: str, shape: tuple[int, int, int]) -> tuple[Record, list[float]]:
    """The record of one shape, and how long each of its tunings took in microseconds."""
    torch, client = context.torch, context.gpu_client()
    dtype, precision = KINDS[kind]
    m, n, k = shape
    torch_dtype = getattr(torch, DTYPES[dtype])
    size = (m * k + k * n + m * n) * torch.empty(0, dtype=torch_dtype).element_size()
    n_sets = sets_for(size)
    generator = torch.Generator(device="cuda").manual_seed(1)

    def operands() -> tuple[Any, Any, Any]:
        a, b = (torch.randn(s, device="cuda", generator=generator).to(torch_dtype) for s in ((m, k), (k, n)))
        return a, b, torch.empty((m, n), device="cuda", dtype=torch_dtype)

    sets = [operands() for _ in range(n_sets)]
    torch.cuda.synchronize()
    tunings = tune(client, sets[0], precision)
    tuned = tunings[-1]
    used: list[str] = []
    timers: set[str] = set()
    our_sets, peer_sets = Rotation(sets), Rotation(sets)

    def ours(count: int) -> Iterable[float]:
        return pipelined(
            client, "gemm", our_sets.take(count), ret_variant=used, timing="exact", ret_timers=timers, precision=precision
        )

    def peer(count: int) -> Iterable[float]:
        return kernel_times(torch, [lambda s=s: torch.mm(s[0], s[1], out=s[2]) for s in peer_sets.take(count)], each=None)

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    try:
        our_times, peer_times = alternate(context, ours, peer, warmup=max(3, n_sets))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    name = f"gemm_tuned_{kind}_{name_of(shape)}"
    work = 2.0 * m * n * k
    detail = {
        "measured": "CUPTI's times of the kernels in the daemon against CUPTI's times of the kernels of torch.mm",
        "timer": "+".join(sorted(timers)),
        "cache": cache_note(size, n_sets),
        "chosen": tuned.best.what,
        "gain_over_usual": tuned.gain,
        "candidates": len(tuned.candidates),
        "tried": [one.tried for one in tunings],
        "tunings_us": [one.took_us for one in tunings],
        "variant": used[-1],
        "m": m,
        "n": n,
        "k": k,
    }
    ours_rate, peer_rate = summarise_rate(our_times, work), summarise_rate(peer_times, work, "torch.mm(out=)")
    target = TARGETS.get(f"{kind}_{name_of(shape)}", TARGET)
    return Record(name, "GFLOP/s", "higher", ours_rate, peer_rate, detail, target=target), [one.took_us for one in tunings]


def run(context: Context, kind: str) -> list[Record]:
    made = [one(context, kind, shape) for shape in shapes(context)]
    records = [record for record, _ in made]
    ratios = [record.ratio for record in records if record.ratio]
    geomean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
    detail = {"geomean_ratio": geomean, "target_of_geomean": GEOMEAN_TARGET, "shapes": len(made), "the_first_us": made[0][1][0]}
    took = summarise([one for _, took in made for one in took])
    return [*records, Record(f"gemm_tuned_{kind}_tuning", "us", "lower", took, None, detail, TUNING_TARGET_US, True, "max")]


for _kind in KINDS:
    add(f"gemm_tuned_{_kind}", lambda c, kind=_kind: run(c, kind), on_gpu=True, seconds=240)
