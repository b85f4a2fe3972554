"""What torch's dispatcher adds to a call: `torch.ops.kops.add` beside the client's own method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any

from ..context import Context, Skipped
from ..record import Record, summarise
from . import add, rounds
from .blocking import check_sum, vectors
from .ordered import ordered_client

CALLS = 64  # in a row before the stream is waited for: as many as the daemon takes without holding the client back
ROUNDS = 400


def submissions(context: Context, call: Callable[[], Any]) -> Callable[[int], Iterator[float]]:
    """Samples of microseconds that the caller spends in a call."""

    def samples(count: int) -> Iterator[float]:
        for _ in range(count):
            start = perf_counter_ns()
            for _ in range(CALLS):
                call()
            elapsed = perf_counter_ns() - start
            context.torch.cuda.synchronize()
            yield elapsed * 1e-3 / CALLS

    return samples


def run(context: Context) -> Record:
    if context.smoke:
        raise Skipped("the stand-in for torch has no dispatcher")
    torch = context.torch
    import kops.torch

    a, b, _ = vectors(context, 3)
    wanted = a.clone().requires_grad_()
    with ordered_client(context) as client:
        kops.torch.use(client)
        try:
            op, method, with_graph = rounds(
                context,
                [
                    submissions(context, lambda: torch.ops.kops.add(a, b)),
                    submissions(context, lambda: client.add(a, b)),
                    submissions(context, lambda: torch.ops.kops.add(wanted, b)),
                ],
                calls=ROUNDS,
            )
            check_sum(context, a, b, torch.ops.kops.add(a, b))
            client.synchronize()
        finally:
            kops.torch.use(None)
    return Record(
        "torch_op_eager",
        "us",
        "same",
        summarise(op),
        summarise(method, "Client.add"),
        {
            "measured": "torch.ops.kops.add of two torch CUDA tensors of 1024 f32, ordered, against Client.add: the caller's time of"
            f" {CALLS} calls in a row, by their number; the stream is waited for between the rounds",
            "n": "rounds",
            "requires_grad_p50": summarise(with_graph).p50,
            "torch": torch.__version__,
            **context.python_link(),
        },
        target=2.0,
    )


add("torch_op_eager", run, on_gpu=True, mps=True, table=True)
