"""scaled_gemm on the GPU, products of 8-bit floats, against torch._scaled_mm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..calls import pipelined, profile
from ..context import Context
from ..cuda import Rotation, cache_note, event_times, sets_for
from ..record import Record, summarise_rate
from . import add, alternate

# (m, n, k): square, a layer of a model over a long prompt, and over few tokens.
SHAPES = {
    "1024": (1024, 1024, 1024), "4096": (4096, 4096, 4096), "8192": (8192, 8192, 8192), "8192x4096x1024": (8192, 4096, 1024),
    "16x4096x4096": (16, 4096, 4096),
}  # fmt: skip
NAMES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
TARGET = 0.97


def run(context: Context, name: str, types: tuple[str, str], shape: str, target: float | None, **how: Any) -> Record:
    """`rows`: scales of rows and columns; `fast`: sums of the tensor cores alone; `variant`: forced."""
    torch = context.torch
    client = context.gpu_client()
    m, n, k = SHAPES[shape]
    of_a, of_b = (getattr(torch, NAMES[one]) for one in types)
    rows, fast = bool(how.get("rows")), bool(how.get("fast"))
    attributes: dict[str, Any] = {"precision": "medium"} if fast else {}
    if "variant" in how:
        attributes["variant"] = how["variant"]
    bytes_of_one = m * k + k * n + 2 * m * n
    n_sets = sets_for(bytes_of_one)
    generator = torch.Generator(device="cuda").manual_seed(1)

    def random(*size: int, dtype: Any) -> Any:
        return torch.randn(size, device="cuda", generator=generator).to(dtype)

    def scale(*size: int) -> Any:
        return torch.rand(size, device="cuda", generator=generator) + 0.5

    def operands() -> tuple[Any, ...]:
        scales = (scale(m, 1), scale(1, n)) if rows else (scale(1, 1), scale(1, 1))
        return random(m, k, dtype=of_a), random(n, k, dtype=of_b).t(), *scales, torch.empty((m, n), device="cuda", dtype=torch.bfloat16)

    sets = [operands() for _ in range(n_sets)]
    torch.cuda.synchronize()
    used: list[str] = []
    our_sets, peer_sets = Rotation(sets), Rotation(sets)

    def theirs(a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any) -> None:
        torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast, out=out)

    def ours(count: int) -> Iterable[float]:
        if n_sets == 1:
            *inputs, out = sets[0]
            return profile(client, "scaled_gemm", tuple(inputs), out, repeat=count, ret_variant=used, **attributes)
        return pipelined(client, "scaled_gemm", our_sets.take(count), ret_variant=used, **attributes)

    def peer(count: int) -> Iterable[float]:
        return event_times(torch, [lambda s=s: theirs(*s) for s in peer_sets.take(count)])

    our_times, peer_times = alternate(context, ours, peer, warmup=max(3, n_sets))
    work = 2.0 * m * n * k
    return Record(
        name,
        "GFLOP/s",
        "higher",
        summarise_rate(our_times, work),
        summarise_rate(peer_times, work, f"torch._scaled_mm(out=, use_fast_accum={fast})"),
        {
            "measured": (
                f"gpu_us of {'repeated executions' if n_sets == 1 else 'pipelined requests'} in the daemon"
                " against CUDA events around torch calls queued back to back"
            ),
            "cache": cache_note(bytes_of_one, n_sets),
            "scales": "of rows and columns" if rows else "one each",
            "variant": used[-1],
            "m": m,
            "n": n,
            "k": k,
        },
        target=target,
    )


def _add(name: str, types: tuple[str, str], shape: str, target: float | None = None, **how: Any) -> None:
    add(name, lambda context: run(context, name, types, shape, target, **how), on_gpu=True)


for _shape in SHAPES:
    _add(f"scaled_gemm_e4m3_e4m3_{_shape}", ("e4m3", "e4m3"), _shape, TARGET if _shape in ("4096", "8192") else None)
    _add(f"scaled_gemm_e4m3_e4m3_{_shape}_rows", ("e4m3", "e4m3"), _shape, rows=True)
    _add(f"scaled_gemm_e4m3_e4m3_{_shape}_medium", ("e4m3", "e4m3"), _shape, fast=True)
_add("scaled_gemm_e4m3_e5m2_4096", ("e4m3", "e5m2"), "4096", TARGET)
_add("scaled_gemm_tiled_4096", ("e4m3", "e4m3"), "4096", variant="tiled")
