"""Launches in the caller's own context of code that the daemon compiled, against torch's own launches. No MPS: one process uses
the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any

from ..context import Context, Skipped
from ..record import Record, summarise
from ..user_kernels import BLOCK, VECTOR_ADD, fresh, kernel_client
from . import add, rounds
from .blocking import ELEMENTS, vectors
from .compile import child
from .launches import torch_call
from .noop import summary
from .ordered import OPS, PYTHON_ROUNDS, check, in_a_row

NODES = 20  # of a graph
CALLS = 64  # in a row before the stream is waited for
MODEL_SIDE = 256


def of_the_caller(context: Context, call: Callable[[], Any]) -> Callable[[int], Iterator[float]]:
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


def ready(client: Any, *tensors: Any) -> Any:
    """The kernel, launched here once."""
    if "code" not in client.info.features:
        raise Skipped("this daemon hands out no code")
    kernel = VECTOR_ADD.declare(client)
    c, a, b = tensors
    kernel(c, a, b, ELEMENTS, where="here")
    return kernel


def run_launch(context: Context) -> list[Record]:
    a, b, c = vectors(context, 3)
    by_torch = torch_call(context, c, a, b)
    n_rounds = 4 if context.smoke else 400
    with kernel_client(context, blocking=False) as client:
        kernel = ready(client, c, a, b)
        bound = kernel[-(-ELEMENTS // BLOCK), BLOCK]
        sides = [
            of_the_caller(context, lambda: kernel(c, a, b, ELEMENTS, where="here")),
            of_the_caller(context, lambda: bound(c, a, b, ELEMENTS, where="here")),
            of_the_caller(context, lambda: context.torch.add(a, b, out=c)),
            *([of_the_caller(context, by_torch)] if callable(by_torch) else []),
        ]
        ours, with_geometry, op, *theirs = rounds(context, sides, calls=n_rounds)
        kernel(c, b, b, ELEMENTS, where="here")
        check(context, c, 4.0)
    detail = {
        "measured": f'kernel(c, a, b, n, where="here") of 1024 f32: the caller\'s time of {CALLS} calls in a row, by their number',
        "n": "rounds",
        "geometry_of_the_call_p50_us": summarise(with_geometry).p50,
        "torch_add_out_p50_us": summarise(op).p50,
        **({} if theirs else {"no_peer": by_torch}),
        **context.python_link(),
    }
    peer = summarise(theirs[0], "torch.cuda._compile_kernel's launch") if theirs else None
    return [Record("here_launch_python", "us", "lower", summarise(ours), peer, detail, target=0.25)]


def run_c(context: Context) -> Record:
    n_rounds, ops = (2, 20) if context.smoke else (40, 500)
    found = context.run_program("bench_here", "--rounds", n_rounds, "--ops", ops, socket=context.gpu_daemon.socket_path)
    detail = {
        "measured": f"kops_kernel_enqueue() with KOPS_WHERE_HERE, {ops} in a row and cuStreamSynchronize, by their number; 1024 f32",
        "n": "rounds",
    }
    peer = summary(found["launches"], "cuLaunchKernel of an equal kernel")
    return Record("here_launch_c", "us", "lower", summary(found["here"]), peer, detail, target=1.1)


def chains(context: Context, middle: Callable[[], Any], tensors: tuple[Any, ...], ops: int, n_rounds: int) -> Any:
    """Samples of torch.add, the middle one, torch.add, each reading what the last wrote, and of three torch.add."""
    torch = context.torch
    a, b, c = tensors

    def chain(step: Callable[[], Any]) -> Any:
        def links() -> None:
            torch.add(a, b, out=c)
            step()
            torch.add(a, b, out=c)

        return in_a_row(context, ops, links)

    found = rounds(context, [chain(middle), chain(lambda: torch.add(c, b, out=a))], calls=n_rounds, warmup=1)
    torch.cuda.synchronize()
    return found


def run_chain(context: Context) -> Record:
    a, b, c = vectors(context, 3)
    ops, n_rounds = (20, 2) if context.smoke else (OPS // 3, PYTHON_ROUNDS)
    with kernel_client(context, blocking=False) as client:
        kernel = ready(client, c, a, b)
        mine, peer = chains(context, lambda: kernel(a, c, b, ELEMENTS, where="here"), (a, b, c), ops, n_rounds)
    detail = {
        "measured": f"torch.add, a user's vector_add here, torch.add of 1024 f32, {ops} times in a row and torch.cuda.synchronize()",
        "n": "rounds",
        **context.python_link(),
    }
    return Record("here_chain_python", "us", "lower", summarise(mine), summarise(peer, "three torch.add"), detail, target=1.2)


def run_op(context: Context) -> list[Record]:
    """An op of the daemon's, issued here and completed, and what the choice of the place adds."""
    if context.smoke:
        raise Skipped("with the stand-in for torch no place is chosen")
    torch = context.torch
    a, b, c = vectors(context, 3)
    with kernel_client(context, blocking=False) as client:
        if "images" not in client.info.features:
            raise Skipped("this daemon hands out no code")
        calls = [
            lambda: client.add(a, b, out=c, where="here"),
            lambda: client.add(a, b, out=c, where="auto"),
            lambda: torch.add(a, b, out=c),
        ]
        here, auto, peer = rounds(context, [in_a_row(context, OPS, call) for call in calls], calls=PYTHON_ROUNDS, warmup=1)
        c.zero_()
        calls[0]()
        check(context, c, 3.0)
    measured = f"Client.add(out=) of 1024 f32 torch CUDA tensors, {OPS} in a row and torch.cuda.synchronize(), by their number; no MPS"
    detail = {"measured": measured, "n": "rounds", **context.python_link()}
    mine = summarise(here, 'where="here"')
    return [
        Record("here_op_python", "us", "lower", mine, summarise(peer, "torch.add(out=)"), detail, target=1.0),
        Record("here_op_auto", "us", "same", summarise(auto, 'where="auto"'), mine, detail, target=0.3),
    ]


def run_torch_op(context: Context) -> Record:
    if context.smoke:
        raise Skipped("the stand-in for torch has no dispatcher")
    torch = context.torch
    import kops.torch

    a, b, _ = vectors(context, 3)
    with context.connect(blocking=False, where="here") as client:
        kops.torch.use(client)
        try:
            check(context, torch.ops.kops.add(a, b), 3.0)
            calls = [lambda: torch.ops.kops.add(a, b), lambda: torch.add(a, b)]
            mine, peer = rounds(context, [in_a_row(context, OPS, call) for call in calls], calls=PYTHON_ROUNDS, warmup=1)
        finally:
            kops.torch.use(None)
    detail = {
        "measured": f'torch.ops.kops.add of 1024 f32, connected with where="here", {OPS} in a row and torch.cuda.synchronize(), by their'
        " number; no MPS",
        "n": "rounds",
        **context.python_link(),
    }
    return Record("here_torch_op", "us", "lower", summarise(mine), summarise(peer, "torch.add"), detail, target=1.3)


def run_chain_of_ops(context: Context) -> Record:
    """The chain with an op of the daemon's in the middle, without MPS."""
    if context.smoke:
        raise Skipped("with the stand-in for torch no place is chosen")
    a, b, c = vectors(context, 3)
    ops = OPS // 3
    with kernel_client(context, blocking=False) as client:
        if "images" not in client.info.features:
            raise Skipped("this daemon hands out no code")
        mine, peer = chains(context, lambda: client.add(c, b, out=a, where="auto"), (a, b, c), ops, PYTHON_ROUNDS)
    detail = {
        "measured": f'torch.add, Client.add(where="auto"), torch.add of 1024 f32, {ops} times in a row and torch.cuda.synchronize()',
        "n": "rounds",
        **context.python_link(),
    }
    return Record("here_chain_ops", "us", "lower", summarise(mine), summarise(peer, "three torch.add"), detail, target=1.1)


def graph_of(torch: Any, step: Callable[[], Any]) -> Any:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(NODES):
            step()
    return graph


def run_replay(context: Context) -> Record:
    if context.smoke:
        raise Skipped("the stand-in for torch captures no graphs")
    torch = context.torch
    a, b, c = vectors(context, 3)
    with kernel_client(context, blocking=False) as client:
        kernel = ready(client, c, a, b)
        ours = graph_of(torch, lambda: kernel(c, a, b, ELEMENTS))
        theirs = graph_of(torch, lambda: torch.add(a, b, out=c))
        c.zero_()
        ours.replay()
        check(context, c, 3.0)
        sides = [in_a_row(context, 1, ours.replay), in_a_row(context, 1, theirs.replay)]
        mine, peer = rounds(context, sides, calls=context.calls * 5)
    detail = {"measured": f"replay of a graph of {NODES} kernels and torch.cuda.synchronize(); 1024 f32", "nodes": NODES}
    return Record("here_replay", "us", "lower", summarise(mine), summarise(peer, "a graph of as many torch.add"), detail, target=1.1)


def run_second_process(context: Context) -> Record:
    """A fresh process, from the source to the first launch here, of a kernel that the daemon has."""
    found = []
    for _ in range(2 if context.smoke else 7):
        source = fresh(VECTOR_ADD.source)
        with kernel_client(context) as client:
            client.compile(source, [VECTOR_ADD.entry])
        found.append(child(context, "here", context.gpu_daemon.socket_path, said=source))
    if not all(one["right"] for one in found):
        raise RuntimeError("a result is wrong")
    detail = {
        "measured": "Client.kernel() and its first launch here, waited for, in a fresh process with torch's context and a connection;"
        " another process compiled the source before",
        "n": "processes",
        "again_p50_us": summarise(one["again_us"] for one in found).p50,
    }
    return Record("here_second_process", "us", "lower", summarise(one["us"] for one in found), None, detail, target=1000.0, absolute=True)


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
    if context.smoke:
        raise Skipped("the stand-in for torch compiles nothing")
    torch = context.torch
    import kops.torch

    x = torch.randn(MODEL_SIDE, MODEL_SIDE, device="cuda")
    weights = [torch.randn(MODEL_SIDE, MODEL_SIDE, device="cuda") / MODEL_SIDE**0.5 for _ in range(10)]
    ops = torch.ops.kops
    with kernel_client(context, blocking=False) as client, torch.no_grad():
        if "images" not in client.info.features:
            raise Skipped("this daemon hands out no code")
        kops.torch.use(client)
        try:
            ours = torch.compile(model(torch, ops.square, ops.gemm), fullgraph=True, mode="reduce-overhead")
            theirs = torch.compile(model(torch, torch.square, torch.mm), fullgraph=True, mode="reduce-overhead")
            for _ in range(3):  # compiled, warmed up, captured
                mine, other = ours(x, weights).clone(), theirs(x, weights).clone()
            torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)
            before = by_the_daemon(client)
            sides = [in_a_row(context, 1, lambda: ours(x, weights)), in_a_row(context, 1, lambda: theirs(x, weights))]
            own, peer = rounds(context, sides, calls=context.calls * 5)
            if by_the_daemon(client) != before:
                raise RuntimeError("the daemon ran ops that the graph should have")
        finally:
            kops.torch.use(None)
    detail = {
        "measured": f"a model of 20 ops on {MODEL_SIDE} x {MODEL_SIDE} f32, torch.compile(mode=\"reduce-overhead\"), and"
        " torch.cuda.synchronize(): mm, torch.ops.kops.square, torch.ops.kops.gemm, tanh, five times",
        "torch": torch.__version__,
    }
    return Record("here_model", "us", "lower", summarise(own), summarise(peer, "the same model of torch's ops"), detail, target=1.15)


add("here_launch_python", run_launch, on_gpu=True, table=True)
add("here_launch_c", run_c, on_gpu=True, table=True)
add("here_chain_python", run_chain, on_gpu=True, table=True)
add("here_op", run_op, on_gpu=True, table=True)
add("here_torch_op", run_torch_op, on_gpu=True, table=True)
add("here_chain_ops", run_chain_of_ops, on_gpu=True, table=True)
add("here_replay", run_replay, on_gpu=True, table=True)
add("here_model", run_model, on_gpu=True, table=True, seconds=240)
add("here_second_process", run_second_process, on_gpu=True, table=True, seconds=120)
