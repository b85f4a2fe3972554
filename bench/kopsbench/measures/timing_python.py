"""What a caller in Python pays for the times of its own blocking call."""

from __future__ import annotations

from ..context import Context
from ..record import Record, summarise
from ..user_kernels import kernel_client
from ..works import Kernel, Kind, Op, gemm
from . import add, rounds
from .blocking import ELEMENTS, timed

TARGET = 1.15


def works(smoke: bool) -> dict[str, tuple[str, Kind]]:
    n = 16 if smoke else 1024
    return {
        "add": (f"add of {ELEMENTS} f32", Op("add", (ELEMENTS,))),
        "gemm": (f"gemm of {n}³, bf16", gemm(n, "bf16")),
        "kernel": (f"a user's vector_add of {ELEMENTS} f32", Kernel(ELEMENTS)),
    }


def run(context: Context) -> list[Record]:
    records = []
    with kernel_client(context) as client:
        for name, (title, kind) in works(context.smoke).items():
            work = kind.ready(context, client)
            if not work.timed(True).total_us:
                raise RuntimeError(f"{title}: a timed call has no times")
            with_times, without = rounds(
                context, [timed(lambda w=work: w.call(True)), timed(lambda w=work: w.call(False))], calls=context.calls * 5
            )
            records.append(
                Record(
                    f"timing_python_{name}",
                    "us",
                    "lower",
                    summarise(with_times),
                    summarise(without, "timing=False"),
                    {"measured": f"blocking {title}, torch CUDA tensors, with timing=True, in turns", **context.python_link()},
                    target=TARGET,
                )
            )
    return records


add("timing_python", run, on_gpu=True, table=True)
