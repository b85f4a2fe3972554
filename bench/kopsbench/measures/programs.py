"""Twenty small adds as one program, blocking, against twenty calls and a CUDA graph of the caller."""

from __future__ import annotations

from typing import Any

from ..context import Context, Skipped
from ..record import Record, summarise
from . import add, rounds
from .blocking import timed, vectors
from .noop import summary
from .ordered import check
from .peers import rate

OPS = 20


def run_c(context: Context) -> list[Record]:
    each = 4 if context.smoke else max(context.calls, 200) * 2 // context.blocks
    found = context.run_program("bench_program", "--blocks", context.blocks, "--calls", each, socket=context.gpu_daemon.socket_path)
    measured = f"kops_program_run() of {OPS} adds of 1024 f32, each reading what the last wrote"
    detail = {"sequence_p50_us": found["sequence"]["p50"]}
    made = [
        Record(
            "program_20_c_vs_launches",
            "us",
            "lower",
            summary(found["program"]),
            summary(found["launches"], "20 launches + synchronize"),
            {"measured": f"{measured}, against {OPS} launches and cuStreamSynchronize", **detail},
        )
    ]
    if "graph" in found:
        made.append(
            Record(
                "program_20_c_vs_graph",
                "us",
                "lower",
                summary(found["program"]),
                summary(found["graph"], "cuGraphLaunch + synchronize"),
                {"measured": f"{measured}, against a CUDA graph of {OPS} launches and cuStreamSynchronize", **detail},
            )
        )
    return made


def define(client: Any, b: Any, x: Any, y: Any) -> Any:
    """x = x + b through y, twenty times."""
    with client.program() as program:
        for i in range(OPS):
            client.add(*((x, b) if i % 2 == 0 else (y, b)), out=y if i % 2 == 0 else x)
    return program


def run_python(context: Context) -> list[Record]:
    torch = context.torch
    b, x, y = vectors(context, 3)  # 1, 2, 3
    with context.connect() as client:
        if "program" not in client.info.features:
            raise Skipped("the daemon keeps no programs")
        program = define(client, b, x, y)

        def eager() -> None:
            for i in range(OPS):
                torch.add(*((x, b) if i % 2 == 0 else (y, b)), out=y if i % 2 == 0 else x)

        def eager_call() -> None:
            eager()
            torch.cuda.synchronize()

        eager_call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            eager()

        def graph_call() -> None:
            graph.replay()
            torch.cuda.synchronize()

        ours, by_eager, by_graph = rounds(context, [timed(program.run), timed(eager_call), timed(graph_call)], calls=context.calls * 2)
        check_program(context, program, b, x)
    detail = {
        "measured": f"run() of a program of {OPS} Client.add(out=) of 1024 f32 torch CUDA tensors, blocking",
        **context.python_link(),
    }
    return [
        Record(
            "program_20_python_vs_eager",
            "calls/s",
            "higher",
            rate(ours),
            rate(by_eager, "20 torch.add(out=) + synchronize"),
            {**detail, "ours_p50_us": summarise(ours).p50, "peer_p50_us": summarise(by_eager).p50},
            target=3.0,
        ),
        Record(
            "program_20_python_vs_graph",
            "us",
            "lower",
            summarise(ours),
            summarise(by_graph, "torch.cuda.CUDAGraph.replay + synchronize"),
            detail,
            target=1.3,
        ),
    ]


def check_program(context: Context, program: Any, b: Any, x: Any) -> None:
    context.torch.add(b, b, out=x)
    context.torch.cuda.synchronize()
    program.run()
    check(context, x, 2.0 + OPS)


add("program_20_c", run_c, on_gpu=True, table=True)
add("program_20_python", run_python, on_gpu=True, table=True)
