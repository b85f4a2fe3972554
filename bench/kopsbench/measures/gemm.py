"""gemm on the GPU against torch.mm, and our own tiled kernel against cuBLAS."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..calls import pipelined, profile
from ..context import Context
from ..cuda import DTYPES, Rotation, cache_note, event_times, sets_for
from ..record import Record, summarise_rate
from . import add, alternate

# (m, n, k)
SHAPES = {
    "4096": (4096, 4096, 4096),
    "8192": (8192, 8192, 8192),
    "4095": (4095, 4095, 4095),
    "4097": (4097, 4097, 4097),
    "16x4096x4096": (16, 4096, 4096),
    "256": (256, 256, 256),
    "64": (64, 64, 64),
    "512x512x65536": (512, 512, 65536),
}
TARGET_SHAPES = ("4096", "8192")
TARGET = 0.97
TARGETS = {
    "bf16_4095": 3.5, "bf16_4097": 3.5, "tf32_4095": 1.8, "tf32_4097": 1.8, "high_8192": 4.5, "f32_16x4096x4096": 1.7, "f32_256": 1.4,
}  # fmt: skip
TILED_TARGET = 0.5


@dataclass(frozen=True)
class Kind:
    dtype: str
    precision: str = "highest"


KINDS = {
    "f32": Kind("f32"),
    "high": Kind("f32", "high"),
    "tf32": Kind("f32", "medium"),
    "f64": Kind("f64"),
    "f16": Kind("f16"),
    "bf16": Kind("bf16"),
}


def errors_of(torch: Any, client: Any, shape: tuple[int, int, int], attributes: dict[str, Any]) -> dict[str, float]:
    """Relative errors, ours and torch's, of a product in float32 against one in float64: of normal numbers, and of numbers
    in [0, 1), whose rounding errors add up."""
    m, n, k = shape
    errors = {}
    for data, draw in (("normal", torch.randn), ("uniform", torch.rand)):
        a, b = draw((m, k), device="cuda"), draw((k, n), device="cuda")
        right = a.double() @ b.double()
        for who, got in (("", client.gemm(a, b, **attributes)), ("_torch", a @ b)):
            errors[f"error_{data}{who}"] = float((got.double() - right).norm() / right.norm())
    return errors


def run(context: Context, name: str, kind: Kind, shape: str, variant: str | None, target: float | None) -> Record:
    torch = context.torch
    client = context.gpu_client()
    m, n, k = SHAPES[shape]
    torch_dtype = getattr(torch, DTYPES[kind.dtype])
    bytes_of_one = (m * k + k * n + m * n) * torch.empty(0, dtype=torch_dtype).element_size()
    n_sets = sets_for(bytes_of_one)
    generator = torch.Generator(device="cuda").manual_seed(1)

    def operands() -> tuple[Any, Any, Any]:
        a = torch.randn((m, k), device="cuda", generator=generator, dtype=torch.float32).to(torch_dtype)
        b = torch.randn((k, n), device="cuda", generator=generator, dtype=torch.float32).to(torch_dtype)
        return a, b, torch.empty((m, n), device="cuda", dtype=torch_dtype)

    sets = [operands() for _ in range(n_sets)]
    torch.cuda.synchronize()
    attributes = {"precision": kind.precision, **({"variant": variant} if variant else {})}
    used: list[str] = []
    our_sets, peer_sets = Rotation(sets), Rotation(sets)

    def ours(count: int) -> Iterable[float]:
        if n_sets == 1:
            a, b, out = sets[0]
            return profile(client, "gemm", (a, b), out, repeat=count, ret_variant=used, **attributes)
        return pipelined(client, "gemm", our_sets.take(count), ret_variant=used, **attributes)

    def peer(count: int) -> Iterable[float]:
        return event_times(torch, [lambda s=s: torch.mm(s[0], s[1], out=s[2]) for s in peer_sets.take(count)])

    tf32_before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = kind.precision == "medium"
    errors: dict[str, float] = {}
    try:
        our_times, peer_times = alternate(context, ours, peer, warmup=max(3, n_sets))
        if kind.dtype == "f32":
            errors = errors_of(torch, client, (m, n, k), attributes)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = tf32_before
    work = 2.0 * m * n * k
    return Record(
        name,
        "GFLOP/s",
        "higher",
        summarise_rate(our_times, work),
        summarise_rate(peer_times, work, "torch.mm(out=)"),
        {
            "measured": (
                f"gpu_us of {'repeated executions' if n_sets == 1 else 'pipelined requests'} in the daemon"
                " against CUDA events around torch calls queued back to back"
            ),
            "cache": cache_note(bytes_of_one, n_sets),
            "precision": kind.precision,
            "variant": used[-1],
            "m": m,
            "n": n,
            "k": k,
            **errors,
        },
        target=target,
    )


for _kind_name, _kind in KINDS.items():
    for _shape in SHAPES:
        add(
            f"gemm_{_kind_name}_{_shape}",
            lambda c, of=f"{_kind_name}_{_shape}", kind=_kind, s=_shape: run(
                c, f"gemm_{of}", kind, s, None, TARGETS.get(of, TARGET if s in TARGET_SHAPES else None)
            ),
            on_gpu=True,
        )
for _variant in ("bf16x6",):
    add(
        f"gemm_highest_8192_{_variant}",
        lambda c, variant=_variant: run(c, f"gemm_highest_8192_{variant}", KINDS["f32"], "8192", variant, 1.8),
        on_gpu=True,
    )
add(
    "gemm_tiled_f32_4096",
    lambda c: run(c, "gemm_tiled_f32_4096", KINDS["f32"], "4096", "tiled", TILED_TARGET),
    on_gpu=True,
)
