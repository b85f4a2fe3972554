"""Launches in the caller's own context of code that the daemon compiled, against torch's own launches. No MPS: one process uses
the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ..context import Context
from ..record import Record
from ..user_kernels import VECTOR_ADD
from . import add
from .common import (
    ELEMENTS,
    OPS,
    beside,
    check,
    client_with,
    in_a_row,
    in_rows,
    in_rows_by_program,
    of_program,
    of_the_caller,
    rounds,
    row_of,
    vectors,
)
from .ordered import TORCH, need_torch, torch_call, torch_uses

NODES = 20  # of a graph
CALLS = 64  # in a row before the stream is waited for
MODEL_SIDE = 256
NO_MPS = "in a row and torch.cuda.synchronize(), by their number; no MPS"


@contextmanager
def ready(context: Context, *tensors: Any) -> Iterator[Any]:
    """The kernel, launched here once."""
    with client_with(context, "code", blocking=False) as client:
        kernel = VECTOR_ADD.declare(client)
        kernel(*tensors, ELEMENTS, where="here")
        yield kernel


def run_launch(context: Context) -> Record:
    a, b, c = vectors(context, 3)
    by_torch = torch_call(context, c, a, b)
    with ready(context, c, a, b) as kernel:
        calls = [lambda: kernel(c, a, b, ELEMENTS, where="here"), *([by_torch] if callable(by_torch) else [])]
        sides = [of_the_caller(context, CALLS, call) for call in calls]
        ours, *theirs = rounds(context, sides, calls=4 if context.smoke else 400)
        kernel(c, b, b, ELEMENTS, where="here")
        check(context, c, 4.0)
    detail: dict[str, Any] = {"n": "rounds", **context.python_link(), **({} if theirs else {"no_peer": by_torch})}
    measured = f'kernel(c, a, b, n, where="here") of 1024 f32: the caller\'s time of {CALLS} calls in a row, by their number'
    return beside("here_launch_python", ours, (theirs[0], TORCH) if theirs else None, measured, 0.25, **detail)


def run_c(context: Context) -> Record:
    ops = row_of(context, 500)
    found = in_rows_by_program(context, "here", ops, 40)
    measured = f"kops_kernel_enqueue() with KOPS_WHERE_HERE, {ops} in a row and cuStreamSynchronize, by their number; 1024 f32"
    peer = of_program(found["launches"], "cuLaunchKernel of an equal kernel")
    return beside("here_launch_c", of_program(found["here"]), peer, measured, 1.1, n="rounds")


def chain_record(context: Context, name: str, middle: Callable[[], Any], tensors: tuple[Any, ...], what: str, target: float) -> Record:
    """torch.add, the middle one, torch.add, each reading what the last wrote, against three torch.add."""
    torch = context.torch
    a, b, c = tensors

    def chain(step: Callable[[], Any]) -> Callable[[], None]:
        def links() -> None:
            torch.add(a, b, out=c)
            step()
            torch.add(a, b, out=c)

        return links

    mine, peer = in_rows(context, [chain(middle), chain(lambda: torch.add(c, b, out=a))], OPS // 3)
    measured = f"torch.add, {what}, torch.add of 1024 f32, {row_of(context, OPS // 3)} times in a row and torch.cuda.synchronize()"
    return beside(name, mine, (peer, "three torch.add"), measured, target, n="rounds", **context.python_link())


def run_chain(context: Context) -> Record:
    a, b, c = vectors(context, 3)
    with ready(context, c, a, b) as kernel:
        middle = lambda: kernel(a, c, b, ELEMENTS, where="here")  # noqa: E731
        return chain_record(context, "here_chain_python", middle, (a, b, c), "a user's vector_add here", 1.2)


# ---- ops of the daemon's; the stand-in for torch chooses no place, and has neither a dispatcher nor graphs of kernels ----


def run_op(context: Context) -> list[Record]:
    """An op issued here and completed, and what the choice of the place adds."""
    torch = need_torch(context)
    a, b, c = vectors(context, 3)
    with client_with(context, "images", blocking=False) as client:
        calls = [
            lambda: client.add(a, b, out=c, where="here"),
            lambda: client.add(a, b, out=c, where="auto"),
            lambda: torch.add(a, b, out=c),
        ]
        here, auto, peer = in_rows(context, calls)
        c.zero_()
        calls[0]()
        check(context, c, 3.0)
    measured, link = f"Client.add(out=) of 1024 f32 torch CUDA tensors, {OPS} {NO_MPS}", context.python_link()
    return [
        beside("here_op_python", here, (peer, "torch.add(out=)"), measured, 1.0, n="rounds", **link),
        beside("here_op_auto", auto, (here, 'where="here"'), measured, 0.3, "same", n="rounds", **link),
    ]


def run_torch_op(context: Context) -> Record:
    torch = need_torch(context)
    a, b, _ = vectors(context, 3)
    with context.connect(blocking=False, where="here") as client, torch_uses(client):
        check(context, torch.ops.kops.add(a, b), 3.0)
        mine, peer = in_rows(context, [lambda: torch.ops.kops.add(a, b), lambda: torch.add(a, b)])
    measured = f'torch.ops.kops.add of 1024 f32, connected with where="here", {OPS} {NO_MPS}'
    return beside("here_torch_op", mine, (peer, "torch.add"), measured, 1.3, n="rounds", **context.python_link())


def run_chain_of_ops(context: Context) -> Record:
    """The chain with an op of the daemon's in the middle, without MPS."""
    need_torch(context)
    a, b, c = vectors(context, 3)
    with client_with(context, "images", blocking=False) as client:
        middle = lambda: client.add(c, b, out=a, where="auto")  # noqa: E731
        return chain_record(context, "here_chain_ops", middle, (a, b, c), 'Client.add(where="auto")', 1.1)


def graph_of(torch: Any, step: Callable[[], Any]) -> Any:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(NODES):
            step()
    return graph


def run_replay(context: Context) -> Record:
    torch = need_torch(context)
    a, b, c = vectors(context, 3)
    with ready(context, c, a, b) as kernel:
        graphs = [graph_of(torch, lambda: kernel(c, a, b, ELEMENTS)), graph_of(torch, lambda: torch.add(a, b, out=c))]
        c.zero_()
        graphs[0].replay()
        check(context, c, 3.0)
        mine, peer = rounds(context, [in_a_row(context, 1, graph.replay) for graph in graphs], calls=context.calls * 5)
    measured = f"replay of a graph of {NODES} kernels and torch.cuda.synchronize(); 1024 f32"
    return beside("here_replay", mine, (peer, "a graph of as many torch.add"), measured, 1.1)


def model(torch: Any, square: Callable[[Any], Any], product: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """20 ops: 5 times a product of torch's, a square, a product and torch's tanh. No two neighbours can become one kernel."""

    def forward(x: Any, weights: list[Any]) -> Any:
        for i in range(0, len(weights), 2):
            x = torch.tanh(product(square(torch.mm(x, weights[i])), weights[i + 1]))
        return x

    return forward


def by_the_daemon(client: Any) -> int:
    """Executions that the daemon has counted of its own."""
    return sum(row["count"] for row in client.stats()["ops"] if row["variant"] != "here")


def run_model(context: Context) -> Record:
    """Half of the ops are kops', in graphs of torch.compile's; the same model has torch's in their place."""
    torch = need_torch(context)
    import kops.torch  # noqa: F401 - registers the ops

    x = torch.randn(MODEL_SIDE, MODEL_SIDE, device="cuda")
    weights = [torch.randn(MODEL_SIDE, MODEL_SIDE, device="cuda") / MODEL_SIDE**0.5 for _ in range(10)]
    ops = torch.ops.kops
    with client_with(context, "images", blocking=False) as client, torch.no_grad(), torch_uses(client):
        made = [model(torch, ops.square, ops.gemm), model(torch, torch.square, torch.mm)]
        ours, theirs = (torch.compile(one, fullgraph=True, mode="reduce-overhead") for one in made)
        for _ in range(3):  # compiled, warmed up, captured
            mine, other = ours(x, weights).clone(), theirs(x, weights).clone()
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)
        before = by_the_daemon(client)
        sides = [in_a_row(context, 1, lambda: ours(x, weights)), in_a_row(context, 1, lambda: theirs(x, weights))]
        own, peer = rounds(context, sides, calls=context.calls * 5)
        if by_the_daemon(client) != before:
            raise RuntimeError("the daemon ran ops that the graph should have")
    measured = (
        f'a model of 20 ops on {MODEL_SIDE} x {MODEL_SIDE} f32, torch.compile(mode="reduce-overhead"), and torch.cuda.synchronize(): mm,'
        " torch.ops.kops.square, torch.ops.kops.gemm, tanh, five times"
    )
    return beside("here_model", own, (peer, "the same model of torch's ops"), measured, 1.15, torch=torch.__version__)


add("here_launch_python", run_launch, on_gpu=True, table=True)
add("here_launch_c", run_c, on_gpu=True, table=True)
add("here_chain_python", run_chain, on_gpu=True, table=True)
add("here_op", run_op, on_gpu=True, table=True)
add("here_torch_op", run_torch_op, on_gpu=True, table=True)
add("here_chain_ops", run_chain_of_ops, on_gpu=True, table=True)
add("here_replay", run_replay, on_gpu=True, table=True)
add("here_model", run_model, on_gpu=True, table=True, seconds=240)
