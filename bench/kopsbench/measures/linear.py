"""linear on the GPU, a product with its bias and activation in one pass, against torch's ops one after the other, against its product
with the bias and then the activation, and against what torch.compile makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ..calls import pipelined, profile
from ..context import Context
from ..cuda import DTYPES, Rotation, cache_note, event_times, sets_for
from ..record import Record, summarise_rate
from . import add, alternate

# (m, n, k): a layer of a model over a long prompt, square, and over few tokens.
SHAPES = {"4096": (4096, 4096, 4096), "8192x4096x1024": (8192, 4096, 1024), "16x4096x4096": (16, 4096, 4096)}
# How torch does it: what that is called, and the target of the square product.
PEERS = {
    "": ("torch's mm, add, activation", 1.1),
    "_addmm": ("torch's addmm, activation", None),
    "_compiled": ("torch.compile of mm, add, activation", 1.0),
}


def activations(torch: Any) -> dict[str, Callable[[Any], Any]]:
    gelu = torch.nn.functional.gelu
    return {"none": lambda x: x, "relu": torch.relu, "gelu": gelu, "gelu_tanh": partial(gelu, approximate="tanh")}


def run(context: Context, name: str, dtype: str, shape: str, activation: str, against: str, target: float | None) -> Record:
    torch = context.torch
    client = context.gpu_client()
    m, n, k = SHAPES[shape]
    torch_dtype = getattr(torch, DTYPES[dtype])
    bytes_of_one = (m * k + k * n + m * n + n) * torch.empty(0, dtype=torch_dtype).element_size()
    n_sets = sets_for(bytes_of_one)
    generator = torch.Generator(device="cuda").manual_seed(1)

    def random(*size: int, scale: float = 1.0) -> Any:
        return (scale * torch.randn(size, device="cuda", generator=generator)).to(torch_dtype)

    def operands() -> tuple[Any, ...]:
        return random(m, k), random(k, n, scale=k**-0.5), random(n), torch.empty((m, n), device="cuda", dtype=torch_dtype)

    sets = [operands() for _ in range(n_sets)]
    torch.cuda.synchronize()
    used: list[str] = []
    our_sets, peer_sets = Rotation(sets), Rotation(sets)
    apply = activations(torch)[activation]

    def separate(a: Any, b: Any, bias: Any) -> Any:
        return apply(torch.mm(a, b) + bias)

    def with_bias(a: Any, b: Any, bias: Any) -> Any:
        return apply(torch.addmm(bias, a, b))

    theirs = {"": lambda: separate, "_addmm": lambda: with_bias, "_compiled": lambda: torch.compile(separate)}[against]()

    def ours(count: int) -> Iterable[float]:
        attributes = {"activation": activation}
        if n_sets == 1:
            *inputs, out = sets[0]
            return profile(client, "linear", tuple(inputs), out, repeat=count, ret_variant=used, **attributes)
        return pipelined(client, "linear", our_sets.take(count), ret_variant=used, **attributes)

    def peer(count: int) -> Iterable[float]:
        return event_times(torch, [lambda s=s: theirs(*s[:3]) for s in peer_sets.take(count)])

    our_times, peer_times = alternate(context, ours, peer, warmup=max(3, n_sets))
    work = 2.0 * m * n * k
    return Record(
        name,
        "GFLOP/s",
        "higher",
        summarise_rate(our_times, work),
        summarise_rate(peer_times, work, PEERS[against][0]),
        {
            "measured": (
                f"gpu_us of {'repeated executions' if n_sets == 1 else 'pipelined requests'} in the daemon"
                " against CUDA events around torch calls queued back to back"
            ),
            "cache": cache_note(bytes_of_one, n_sets),
            "activation": activation,
            "variant": used[-1],
            "m": m,
            "n": n,
            "k": k,
        },
        target=target,
    )


for _activation in ("none", "relu", "gelu", "gelu_tanh"):
    for _shape in SHAPES:
        for _against, (_, _target) in PEERS.items():
            _name = f"linear_bf16_{_activation}_{_shape}{_against}"
            if _shape != "4096" or _activation == "none":
                _target = None
            add(
                _name,
                lambda c, name=_name, s=_shape, a=_activation, other=_against, target=_target: run(c, name, "bf16", s, a, other, target),
                on_gpu=True,
            )
