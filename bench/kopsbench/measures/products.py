"""Kernels on the GPU against torch's: products of matrices, as they come and as tuning has chosen them, with bias and activation, of 8-bit
floats; and sums and squares of 1 GiB a tensor.

A comparison is `exact`, CUPTI's records of the kernels on both sides, or the daemon's own times of executions against CUDA events around
torch's calls, which are queued back to back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle, islice
from typing import Any

from ..context import Context, Skipped
from ..cuda import DTYPES, cache_note, event_times, kernel_times, sets_for
from ..record import Record, summarise, summarise_rate
from . import add
from .common import rounds

Shape = tuple[int, int, int]  # m, n, k


def shape_of(name: str) -> Shape:
    """`4096`, or `16x4096x4096`, m × n × k."""
    m, *others = map(int, name.split("x"))
    return (m, others[0], others[1]) if others else (m, m, m)


@contextmanager
def tf32(torch: Any, allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


class Side:
    """An op of the daemon's on sets of operands in rotation, inputs and then the output."""

    def __init__(self, client: Any, op: str, sets: Sequence[tuple[Any, ...]], exact: bool, attributes: dict[str, Any]) -> None:
        self.client, self.op, self.sets, self.exact, self.attributes = client, op, sets, exact, attributes
        self.next = cycle(sets)
        self.variant = ""
        self.timers: set[str] = set()

    def __call__(self, n: int) -> list[float]:
        if len(self.sets) == 1 and not self.exact:
            *inputs, out = self.sets[0]
            found = self.client.profile(self.op, *inputs, out=out, warmup=0, repeat=n, **self.attributes)
            self.variant = found.variant
            return list(found.samples)
        # All are sent before the first reply is waited for, so that the daemon can queue them back to back.
        timing = "exact" if self.exact else True
        pending = [self.client.submit(self.op, *one[:-1], out=one[-1], timing=timing, **self.attributes) for one in islice(self.next, n)]
        timings = [one.result()[1] for one in pending]
        self.variant = timings[-1].variant
        self.timers |= {one.timer for one in timings}
        return [one.exec_us for one in timings]


def compare(
    context: Context,
    name: str,
    op: str,
    sets: Sequence[tuple[Any, ...]],
    peer: Callable[..., Any],
    peer_name: str,
    work: float,
    target: float | None,
    exact: bool = False,
    unit: str = "GFLOP/s",
    attributes: dict[str, Any] | None = None,
    **detail: Any,
) -> Record:
    """`peer` is called with the operands. `work` is the operations, or bytes, of one call."""
    torch, client = context.torch, context.gpu_client()
    torch.cuda.synchronize()
    ours, theirs = Side(client, op, sets, exact, attributes or {}), cycle(sets)

    def peers(n: int) -> Iterable[float]:
        calls = [lambda s=one: peer(*s) for one in islice(theirs, n)]
        return kernel_times(torch, calls, each=None) if exact else event_times(torch, calls)

    ours_us, peer_us = rounds(context, [ours, peers], warmup=max(3, len(sets)))
    size = sum(one.numel() * one.element_size() for one in sets[0])
    how = "repeated executions" if len(sets) == 1 else "pipelined requests"
    detail = {
        "measured": "CUPTI's times of the kernels in the daemon against CUPTI's times of the kernels of torch's calls"
        if exact
        else f"gpu_us of {how} in the daemon against CUDA events around torch calls queued back to back",
        "cache": cache_note(size, len(sets)),
        "variant": ours.variant,
        **({"timer": "+".join(sorted(ours.timers))} if exact else {}),
        **detail,
    }
    return Record(name, unit, "higher", summarise_rate(ours_us, work), summarise_rate(peer_us, work, peer_name), detail, target=target)


def random(torch: Any, *shapes: tuple[int, ...], dtype: Any) -> Callable[[], list[Any]]:
    """Makes tensors of normal numbers, others at each call."""
    generator = torch.Generator(device="cuda").manual_seed(1)
    return lambda: [torch.randn(shape, device="cuda", generator=generator, dtype=torch.float32).to(dtype) for shape in shapes]


def operands_of(torch: Any, shape: Shape, dtype: Any) -> list[tuple[Any, ...]]:
    """Sets of a, b and room for their product, as many as do not fit into the cache together."""
    m, n, k = shape
    make = random(torch, (m, k), (k, n), dtype=dtype)
    size = (m * k + k * n + m * n) * torch.empty(0, dtype=dtype).element_size()
    return [(*make(), torch.empty((m, n), device="cuda", dtype=dtype)) for _ in range(sets_for(size))]


# ---- gemm ----

SHAPES = ("4096", "8192", "4095", "4097", "16x4096x4096", "256", "64", "512x512x65536")
KINDS = {  # dtype and precision
    "f32": ("f32", "highest"), "high": ("f32", "high"), "tf32": ("f32", "medium"), "f64": ("f64", "highest"), "f16": ("f16", "highest"),
    "bf16": ("bf16", "highest"),
}  # fmt: skip
TARGETS = {
    "bf16_4095": 3.5, "bf16_4097": 3.5, "tf32_4095": 1.8, "tf32_4097": 1.8, "high_8192": 4.5, "f32_16x4096x4096": 1.7, "f32_256": 1.4,
}  # fmt: skip


def errors_of(torch: Any, client: Any, shape: Shape, attributes: dict[str, Any]) -> dict[str, float]:
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


def run_gemm(context: Context, name: str, kind: str, shape: str, target: float | None, variant: str | None = None) -> Record:
    torch = context.torch
    dtype, precision = KINDS[kind]
    m, n, k = sizes = shape_of(shape)
    attributes = {"precision": precision, **({"variant": variant} if variant else {})}
    sets = operands_of(torch, sizes, getattr(torch, DTYPES[dtype]))
    with tf32(torch, precision == "medium"):
        record = compare(
            context, name, "gemm", sets, lambda a, b, out: torch.mm(a, b, out=out), "torch.mm(out=)", 2.0 * m * n * k, target,
            attributes=attributes, precision=precision, m=m, n=n, k=k,
        )  # fmt: skip
        if dtype == "f32":
            record.detail |= errors_of(torch, context.gpu_client(), sizes, attributes)
    return record


for _kind in KINDS:
    for _shape in SHAPES:
        _target = TARGETS.get(f"{_kind}_{_shape}", 0.97 if _shape in ("4096", "8192") else None)
        add(f"gemm_{_kind}_{_shape}", run_gemm, f"gemm_{_kind}_{_shape}", _kind, _shape, _target, on_gpu=True)
add("gemm_highest_8192_bf16x6", run_gemm, "gemm_highest_8192_bf16x6", "f32", "8192", 1.8, "bf16x6", on_gpu=True)
add("gemm_tiled_f32_4096", run_gemm, "gemm_tiled_f32_4096", "f32", "4096", 0.5, "tiled", on_gpu=True)

# ---- gemm as tuning has chosen it; what a tuning had no time for the next one tries ----

TUNED_SHAPES = (
    "64", "256", "640", "1000", "1024", "2048", "4096", "4097", "8192", "16x4096x4096", "128x8192x8192", "8192x128x8192",
    "32768x512x512", "512x512x65536",
)  # fmt: skip
TUNED_TARGETS = {"f32_256": 1.4, "f32_16x4096x4096": 1.7, "bf16_4097": 3.5, "tf32_4097": 1.8}  # where more is wanted than elsewhere
TUNED_TARGET, GEOMEAN_TARGET, TUNING_TARGET_US = 0.99, 1.08, 1e6
MOST_TUNINGS = 10  # of a shape, until all candidates were tried


def chosen_shapes(context: Context) -> Sequence[str]:
    """Those of `--shapes`; all without it."""
    unknown = set(context.shapes) - set(TUNED_SHAPES)
    if unknown:
        raise Skipped(f"gemm_tuned has no shape {', '.join(sorted(unknown))}; it has {', '.join(TUNED_SHAPES)}")
    return context.shapes or TUNED_SHAPES


def tune(client: Any, operands: tuple[Any, ...], precision: str) -> list[Any]:
    """What each tuning of the shape has said."""
    a, b, out = operands
    said: list[Any] = []
    while len(said) < MOST_TUNINGS:
        said.append(client.tune("gemm", a, b, out=out, precision=precision))
        if not said[-1].goes_on and (said[-1].tried is None or said[-1].tried >= len(said[-1].candidates)):
            break
    return said


def run_tuned(context: Context, kind: str) -> list[Record]:
    torch = context.torch
    dtype, precision = KINDS[kind]
    records: list[Record] = []
    tunings: list[float] = []
    for shape in chosen_shapes(context):
        m, n, k = shape_of(shape)
        sets = operands_of(torch, (m, n, k), getattr(torch, DTYPES[dtype]))
        torch.cuda.synchronize()
        said = tune(context.gpu_client(), sets[0], precision)
        tunings += [one.took_us for one in said]
        detail = {"chosen": said[-1].best.what, "gain_over_usual": said[-1].gain, "candidates": len(said[-1].candidates)}
        detail |= {"tried": [one.tried for one in said], "tunings_us": [one.took_us for one in said], "m": m, "n": n, "k": k}
        target = TUNED_TARGETS.get(f"{kind}_{shape}", TUNED_TARGET)
        with tf32(torch, kind == "tf32"):
            record = compare(
                context, f"gemm_tuned_{kind}_{shape}", "gemm", sets, lambda a, b, out: torch.mm(a, b, out=out), "torch.mm(out=)",
                2.0 * m * n * k, target, exact=True, attributes={"precision": precision}, **detail,
            )  # fmt: skip
        records.append(record)
    ratios = [record.ratio for record in records if record.ratio]
    geomean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
    detail = {"geomean_ratio": geomean, "target_of_geomean": GEOMEAN_TARGET, "shapes": len(records), "the_first_us": tunings[0]}
    took = summarise(tunings)
    return [*records, Record(f"gemm_tuned_{kind}_tuning", "us", "lower", took, None, detail, TUNING_TARGET_US, True, "max")]


for _kind in ("f32", "tf32", "bf16", "f16", "f64"):
    add(f"gemm_tuned_{_kind}", run_tuned, _kind, on_gpu=True, seconds=240)

# ---- linear: a product with its bias and activation in one pass ----

LINEAR_SHAPES = ("4096", "8192x4096x1024", "16x4096x4096")  # square, a layer of a model over a long prompt, and over few tokens
LINEAR_PEERS = {
    "": "torch's mm, add, activation", "_addmm": "torch's addmm, activation", "_compiled": "torch.compile of mm, add, activation",
}  # fmt: skip
LINEAR_TARGETS = {"": 1.1, "_addmm": None, "_compiled": 1.0}  # of the square product


def run_linear(context: Context, name: str, shape: str, activation: str, against: str, target: float | None) -> Record:
    torch = context.torch
    m, n, k = shape_of(shape)
    gelu = torch.nn.functional.gelu
    apply = {"none": lambda x: x, "relu": torch.relu, "gelu": gelu, "gelu_tanh": partial(gelu, approximate="tanh")}[activation]
    make = random(torch, (m, k), (k, n), (n,), dtype=torch.bfloat16)

    def operands() -> tuple[Any, ...]:
        a, b, bias = make()
        return a, b * k**-0.5, bias, torch.empty((m, n), device="cuda", dtype=torch.bfloat16)

    def separate(a: Any, b: Any, bias: Any) -> Any:
        return apply(torch.mm(a, b) + bias)

    theirs = {"": lambda: separate, "_addmm": lambda: lambda a, b, bias: apply(torch.addmm(bias, a, b))}.get(
        against, lambda: torch.compile(separate)
    )()
    return compare(
        context, name, "linear", [operands() for _ in range(sets_for(2 * (m * k + k * n + m * n + n)))],
        lambda a, b, bias, out: theirs(a, b, bias), LINEAR_PEERS[against], 2.0 * m * n * k, target,
        attributes={"activation": activation}, activation=activation, m=m, n=n, k=k,
    )  # fmt: skip


for _activation in ("none", "relu", "gelu", "gelu_tanh"):
    for _shape in LINEAR_SHAPES:
        for _against, _target in LINEAR_TARGETS.items():
            _name = f"linear_bf16_{_activation}_{_shape}{_against}"
            _its = _target if _shape == "4096" and _activation != "none" else None
            add(_name, run_linear, _name, _shape, _activation, _against, _its, on_gpu=True)

# ---- scaled_gemm: products of 8-bit floats ----

SCALED_SHAPES = ("1024", "4096", "8192", "8192x4096x1024", "16x4096x4096")


def run_scaled(context: Context, name: str, shape: str, how: str, target: float | None) -> Record:
    """`rows`: scales of rows and columns; `medium`: sums of the tensor cores alone."""
    torch = context.torch
    m, n, k = shape_of(shape)
    make = random(torch, (m, k), (n, k), dtype=torch.float8_e4m3fn)
    generator = torch.Generator(device="cuda").manual_seed(1)

    def operands() -> tuple[Any, ...]:
        a, b = make()
        shapes = ((m, 1), (1, n)) if how == "rows" else ((1, 1), (1, 1))
        scales = [torch.rand(one, device="cuda", generator=generator) + 0.5 for one in shapes]
        return a, b.t(), *scales, torch.empty((m, n), device="cuda", dtype=torch.bfloat16)

    def theirs(a: Any, b: Any, scale_a: Any, scale_b: Any, out: Any) -> None:
        torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=how == "medium", out=out)

    return compare(
        context, name, "scaled_gemm", [operands() for _ in range(sets_for(m * k + k * n + 2 * m * n))], theirs,
        f"torch._scaled_mm(out=, use_fast_accum={how == 'medium'})", 2.0 * m * n * k, target,
        attributes={"precision": "medium"} if how == "medium" else {}, scales="of rows and columns" if how == "rows" else "one each",
        m=m, n=n, k=k,
    )  # fmt: skip


for _shape in SCALED_SHAPES:
    for _how in ("", "rows", "medium"):
        _name = f"scaled_gemm_e4m3_e4m3_{_shape}" + (f"_{_how}" if _how else "")
        add(_name, run_scaled, _name, _shape, _how, 0.97 if _shape in ("4096", "8192") and not _how else None, on_gpu=True)

# ---- add and square ----

TENSOR_BYTES = 1 << 30


def run_elementwise(context: Context, op: str, dtype: str) -> Record:
    """Both sides' times are the kernels': ours tell theirs themselves."""
    torch, client = context.torch, context.gpu_client()
    of = getattr(torch, DTYPES[dtype])
    count = TENSOR_BYTES // torch.empty(0, dtype=of).element_size()
    *inputs, out = random(torch, *[(count,)] * (3 if op == "add" else 2), dtype=of)()
    calls: dict[str, Callable[[], Any]] = {
        "add": lambda: torch.add(inputs[0], inputs[-1], out=out), "square": lambda: torch.mul(inputs[0], inputs[0], out=out),
    }  # fmt: skip
    torch.cuda.synchronize()
    side = Side(client, op, [(*inputs, out)], False, {})
    ours, peer = rounds(context, [side, lambda n: kernel_times(torch, [calls[op]] * n)])
    moved = TENSOR_BYTES * (len(inputs) + 1)
    detail = {
        "measured": "gpu_us of repeated executions in the daemon against CUPTI's times of the kernels of torch's calls;"
        " bytes of inputs and output at 1 GiB each",
        "variant": side.variant,
    }
    peer_name = "torch.add(out=)" if op == "add" else "torch.mul(out=)"
    rates = summarise_rate(ours, moved), summarise_rate(peer, moved, peer_name)
    return Record(f"{op}_gbps_{dtype}", "GB/s", "higher", *rates, detail, target=0.97)


for _op in ("add", "square"):
    for _dtype in DTYPES:
        add(f"{_op}_gbps_{_dtype}", run_elementwise, _op, _dtype, on_gpu=True)
