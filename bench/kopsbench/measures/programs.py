"""Twenty small adds as one program, blocking, against twenty calls and a CUDA graph of the caller."""

from __future__ import annotations

from ..context import Context
from ..record import Record
from . import add
from .common import and_wait, beside, check, client_with, of_program, rate_beside, rounds, timed, vectors

OPS = 20


def run_c(context: Context) -> list[Record]:
    each = 4 if context.smoke else max(context.calls, 200) * 2 // context.blocks
    turns = ("--blocks", context.blocks, "--calls", each)
    found = context.run_program("bench_gpu", "--work", "program", *turns, socket=context.gpu_daemon.socket_path)
    measured = f"kops_program_run() of {OPS} adds of 1024 f32, each reading what the last wrote, against"
    peers = {"launches": f"{OPS} launches", "graph": "cuGraphLaunch"}
    return [
        beside(
            f"program_20_c_vs_{peer}",
            of_program(found["program"]),
            of_program(found[peer], f"{what} + synchronize"),
            f"{measured} {what} and cuStreamSynchronize",
        )
        for peer, what in peers.items()
        if peer in found  # a driver may have no graphs
    ]


def run_python(context: Context) -> list[Record]:
    torch = context.torch
    b, x, y = vectors(context, 3)  # 1, 2, 3
    # x = x + b through y, twenty times.
    steps = [((x, b), y) if i % 2 == 0 else ((y, b), x) for i in range(OPS)]
    with client_with(context, "program") as client:
        with client.program() as program:
            for inputs, out in steps:
                client.add(*inputs, out=out)

        def eager() -> None:
            for inputs, out in steps:
                torch.add(*inputs, out=out)

        and_wait(context, eager)()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            eager()
        sides = [program.run, and_wait(context, eager), and_wait(context, graph.replay)]
        ours, by_eager, by_graph = rounds(context, [timed(side) for side in sides], calls=context.calls * 2)
        torch.add(b, b, out=x)
        torch.cuda.synchronize()
        program.run()
        check(context, x, 2.0 + OPS)
    measured, link = f"run() of a program of {OPS} Client.add(out=) of 1024 f32 torch CUDA tensors, blocking", context.python_link()
    graph_peer = (by_graph, "torch.cuda.CUDAGraph.replay + synchronize")
    return [
        rate_beside("program_20_python_vs_eager", ours, (by_eager, "20 torch.add(out=) + synchronize"), measured, 3.0, **link),
        beside("program_20_python_vs_graph", ours, graph_peer, measured, 1.3, **link),
    ]


add("program_20_c", run_c, on_gpu=True, table=True)
add("program_20_python", run_python, on_gpu=True, table=True)
