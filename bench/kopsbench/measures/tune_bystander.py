"""What tuning costs others: the latency of one client's small calls while another client has products tuned, against the same calls
while it has none. The two take turns, a tuning of a shape that was never tuned before and as long a time without."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter_ns
from typing import Any, NamedTuple

from ..context import Context
from ..record import Record, Summary, merge, summarise
from . import add

ELEMENTS, ROUNDS, TARGET_US = 1024, 20, 5.0
FIRST = 10  # tunings at most before the rounds


def latencies(call: Callable[[], Any], until: Callable[[], bool]) -> list[float]:
    """Microseconds of each call, at least one."""
    found: list[float] = []
    while not found or not until():
        begin = perf_counter_ns()
        call()
        found.append((perf_counter_ns() - begin) * 1e-3)
    return found


def after(us: float) -> Callable[[], bool]:
    """Whether so much time has passed since now."""
    end = perf_counter_ns() + us * 1e3
    return lambda: perf_counter_ns() > end


class Tuning(NamedTuple):
    us: float
    tried: int  # candidates


def operands(torch: Any, m: int) -> list[Any]:
    return [torch.full(shape, 1.0, device="cuda") for shape in ((m, 64), (64, 64), (m, 64))]


def tune(client: Any, x: Any, y: Any, out: Any) -> Tuning:
    begin = perf_counter_ns()
    said = client.tune("gemm", x, y, out=out)
    return Tuning((perf_counter_ns() - begin) * 1e-3, said.tried or 0)


def run(context: Context) -> Record:
    torch = context.torch
    tuned: list[Summary] = []
    quiet: list[Summary] = []
    said: list[Tuning] = []
    a, b, c = (torch.full((ELEMENTS,), float(i), device="cuda") for i in range(1, 4))
    with (
        context.daemon(cuda=True) as daemon, context.connect(daemon.socket_path) as client, context.connect(daemon.socket_path) as other,
        ThreadPoolExecutor(1) as beside,
    ):  # fmt: skip
        for _ in range(FIRST):  # these start the process that measures, and may be answered before it has begun
            if tune(other, *operands(torch, 32)).tried:
                break

        def call() -> None:
            client.add(a, b, out=c)

        call()
        for turn in range(2 if context.smoke else ROUNDS):
            tuning = beside.submit(tune, other, *operands(torch, 64 * (turn + 1)))
            tuned.append(summarise(latencies(call, tuning.done)))
            said.append(tuning.result())
            quiet.append(summarise(latencies(call, after(said[-1].us))))
    detail = {
        "measured": f"Client.add() of {ELEMENTS} f32, waited for, while another client's Client.tune() of a gemm m x 64 x 64 goes on",
        "n": "calls",
        "p99": "the median of the rounds",
        "tuning_us": summarise(one.us for one in said).as_json(),
        "tried": sum(one.tried for one in said),
        **context.python_link(),
    }
    return Record(
        "tune_bystander", "us", "same", merge(tuned), merge(quiet, "while nothing is tuned"), detail, target=TARGET_US, statistic="p99"
    )


add("tune_bystander", run, on_gpu=True, seconds=120)
