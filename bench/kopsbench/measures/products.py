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

from ..context import Context
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

    def __init__(self, client: Any, op: str, sets: Sequence[tuple[Any, ...]], exact: bool = False, attributes: Any = None) -> None:
        self.client, self.op, self.sets, self.exact, self.attributes = client, op, sets, exact, attributes or {}
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
    shape: Shape,
    target: float | None,
    exact: bool = False,
    attributes: dict[str, Any] | None = None,
    **detail: Any,
) -> Record:
    """A product of that shape; `peer` is called with the operands."""
    torch, client = context.torch, context.gpu_client()
    torch.cuda.synchronize()
    ours, theirs = Side(client, op, sets, exact, attributes), cycle(sets)

    def peers(n: int) -> Iterable[float]:
        calls = [lambda s=one: peer(*s) for one in islice(theirs, n)]
        return kernel_times(torch, calls, each=None) if exact else event_times(torch, calls)

    ours_us, peer_us = rounds(context, [ours, peers], warmup=max(3, len(sets)))
    how = "repeated executions" if len(sets) == 1 else "pipelined requests"
    m, n, k = shape
    detail = {
        "measured": "CUPTI's times of the kernels in the daemon against CUPTI's times of the kernels of torch's calls"
        if exact
        else f"gpu_us of {how} in the daemon against CUDA events around torch calls queued back to back",
        "cache": cache_note(sum(one.numel() * one.element_size() for one in sets[0]), len(sets)),
        "variant": ours.variant,
        **({"timer": "+".join(sorted(ours.timers))} if exact else {}),
        **{"m": m, "n": n, "k": k},
        **detail,
    }
    work = 2.0 * m * n * k
    return Record(name, "GFLOP/s", "higher", summarise_rate(ours_us, work), summarise_rate(peer_us, work, peer_name), detail, target=target)


def random(torch: Any, *shapes: tuple[int, ...], dtype: Any) -> Callable[[], list[Any]]:
    """Makes tensors of normal numbers, others at each call."""
    generator = torch.Generator(device="cuda").manual_seed(1)
    return lambda: [torch.randn(shape, device="cuda", generator=generator, dtype=torch.float32).to(dtype) for shape in shapes]


# ---- gemm ----

KINDS = {  # dtype and precision
    "f32": ("f32", "highest"), "high": ("f32", "high"), "tf32": ("f32", "medium"), "f64": ("f64", "highest"), "f16": ("f16", "highest"),
    "bf16": ("bf16", "highest"),
}  # fmt: skip


def operands_of(torch: Any, kind: str, shape: Shape) -> list[tuple[Any, ...]]:
    """Sets of a, b and room for their product, as many as do not fit into the cache together."""
    m, n, k = shape
    dtype = getattr(torch, DTYPES[KINDS[kind][0]])
    make = random(torch, (m, k), (k, n), dtype=dtype)
    size = (m * k + k * n + m * n) * torch.empty(0, dtype=dtype).element_size()
    return [(*make(), torch.empty((m, n), device="cuda", dtype=dtype)) for _ in range(sets_for(size))]


def against_mm(context: Context, name: str, kind: str, shape: Shape, sets: Any, target: float | None, **more: Any) -> Record:
    torch, precision = context.torch, KINDS[kind][1]
    attributes = {"precision": precision, **more.pop("attributes", {})}
    with tf32(torch, precision == "medium"):
        peer = lambda a, b, out: torch.mm(a, b, out=out)  # noqa: E731
        return compare(context, name, "gemm", sets, peer, "torch.mm(out=)", shape, target, attributes=attributes, **more)


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


def run_gemm(context: Context, name: str, kind: str, side: str, target: float, variant: str | None = None) -> Record:
    torch, (dtype, precision), shape = context.torch, KINDS[kind], shape_of(side)
    more = {"variant": variant} if variant else {}
    record = against_mm(context, name, kind, shape, operands_of(torch, kind, shape), target, attributes=more, precision=precision)
    if dtype == "f32":
        with tf32(torch, precision == "medium"):
            record.detail |= errors_of(torch, context.gpu_client(), shape, {"precision": precision, **more})
    return record


for _kind in KINDS:
    for _side in ("4096", "8192"):
        _target = 4.5 if (_kind, _side) == ("high", "8192") else 0.97
        add(f"gemm_{_kind}_{_side}", run_gemm, f"gemm_{_kind}_{_side}", _kind, _side, _target, on_gpu=True)
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
    records: list[Record] = []
    tunings: list[float] = []
    for name in TUNED_SHAPES:
        shape = shape_of(name)
        sets = operands_of(context.torch, kind, shape)
        context.torch.cuda.synchronize()
        said = tune(context.gpu_client(), sets[0], KINDS[kind][1])
        tunings += [one.took_us for one in said]
        detail = {"chosen": said[-1].best.what, "gain_over_usual": said[-1].gain, "candidates": len(said[-1].candidates)}
        detail |= {"tried": [one.tried for one in said], "tunings_us": [one.took_us for one in said]}
        target = TUNED_TARGETS.get(f"{kind}_{name}", TUNED_TARGET)
        records.append(against_mm(context, f"gemm_tuned_{kind}_{name}", kind, shape, sets, target, exact=True, **detail))
    ratios = [record.ratio for record in records if record.ratio]
    geomean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
    detail = {"geomean_ratio": geomean, "target_of_geomean": GEOMEAN_TARGET, "shapes": len(records), "the_first_us": tunings[0]}
    took = summarise(tunings)
    return [*records, Record(f"gemm_tuned_{kind}_tuning", "us", "lower", took, None, detail, TUNING_TARGET_US, True, "max")]


for _kind in ("f32", "tf32", "bf16", "f16", "f64"):
    add(f"gemm_tuned_{_kind}", run_tuned, _kind, on_gpu=True, seconds=240)

# ---- linear: a product with its bias and activation in one pass ----

LINEAR_SHAPES = ("4096", "8192x4096x1024")  # square, and a layer of a model over a long prompt
LINEAR_PEERS = {  # and the target of the square product
    "": ("torch's mm, add, activation", 1.1), "_addmm": ("torch's addmm, activation", None),
    "_compiled": ("torch.compile of mm, add, activation", 1.0),
}  # fmt: skip


def run_linear(context: Context, name: str, side: str, activation: str, against: str, target: float | None) -> Record:
    torch = context.torch
    m, n, k = shape = shape_of(side)
    gelu = torch.nn.functional.gelu
    apply = {"relu": torch.relu, "gelu": gelu, "gelu_tanh": partial(gelu, approximate="tanh")}[activation]
    make = random(torch, (m, k), (k, n), (n,), dtype=torch.bfloat16)

    def operands() -> tuple[Any, ...]:
        a, b, bias = make()
        return a, b * k**-0.5, bias, torch.empty((m, n), device="cuda", dtype=torch.bfloat16)

    def separate(a: Any, b: Any, bias: Any) -> Any:
        return apply(torch.addmm(bias, a, b) if against == "_addmm" else torch.mm(a, b) + bias)

    theirs = torch.compile(separate) if against == "_compiled" else separate
    return compare(
        context, name, "linear", [operands() for _ in range(sets_for(2 * (m * k + k * n + m * n + n)))],
        lambda a, b, bias, out: theirs(a, b, bias), LINEAR_PEERS[against][0], shape, target, attributes={"activation": activation},
        activation=activation,
    )  # fmt: skip


for _activation in ("relu", "gelu", "gelu_tanh"):
    for _side in LINEAR_SHAPES:
        for _against, (_, _its) in LINEAR_PEERS.items():
            _name = f"linear_bf16_{_activation}_{_side}{_against}"
            add(_name, run_linear, _name, _side, _activation, _against, _its if _side == "4096" else None, on_gpu=True)

# ---- scaled_gemm: products of 8-bit floats ----


def run_scaled(context: Context, name: str, side: str, how: str, target: float | None) -> Record:
    """`rows`: scales of rows and columns; `medium`: sums of the tensor cores alone."""
    torch = context.torch
    m, n, k = shape = shape_of(side)
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
        f"torch._scaled_mm(out=, use_fast_accum={how == 'medium'})", shape, target,
        attributes={"precision": "medium"} if how == "medium" else {}, scales="of rows and columns" if how == "rows" else "one each",
    )  # fmt: skip


for _side in ("1024", "4096", "8192", "16x4096x4096"):
    for _how in ("", "rows", "medium"):
        _name = f"scaled_gemm_e4m3_e4m3_{_side}" + (f"_{_how}" if _how else "")
        add(_name, run_scaled, _name, _side, _how, 0.97 if _side in ("4096", "8192") and not _how else None, on_gpu=True)

# ---- add and square ----

TENSOR_BYTES = 1 << 30


def run_elementwise(context: Context, op: str, dtype: str) -> Record:
    """Both sides' times are the kernels': ours tell theirs themselves."""
    torch = context.torch
    of = getattr(torch, DTYPES[dtype])
    count = TENSOR_BYTES // torch.empty(0, dtype=of).element_size()
    *inputs, out = random(torch, *[(count,)] * (3 if op == "add" else 2), dtype=of)()
    peer, peer_name = (torch.add, "torch.add(out=)") if op == "add" else (torch.mul, "torch.mul(out=)")
    torch.cuda.synchronize()
    side = Side(context.gpu_client(), op, [(*inputs, out)])
    ours, its = rounds(context, [side, lambda n: kernel_times(torch, [lambda: peer(inputs[0], inputs[-1], out=out)] * n)])
    moved = TENSOR_BYTES * (len(inputs) + 1)
    detail = {
        "measured": "gpu_us of repeated executions in the daemon against CUPTI's times of the kernels of torch's calls;"
        " bytes of inputs and output at 1 GiB each",
        "variant": side.variant,
    }
    rates = summarise_rate(ours, moved), summarise_rate(its, moved, peer_name)
    return Record(f"{op}_gbps_{dtype}", "GB/s", "higher", *rates, detail, target=0.97)


for _op in ("add", "square"):
    for _dtype in DTYPES:
        add(f"{_op}_gbps_{_dtype}", run_elementwise, _op, _dtype, on_gpu=True)
