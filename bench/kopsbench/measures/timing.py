"""What it costs that every op is timed: rates with and without."""

from __future__ import annotations

from typing import Any

from ..context import Context
from ..record import Record, Summary
from . import add

# Tensors of 80 MB: three of them take some 56 us on an H200.
SIZES = {"tiny": (1024, 0.85, 500), "50us": (20_000_000, 0.99, 200)}


def as_rate(series: dict[str, Any], name: str | None = None) -> Summary:
    """Calls a second, of a series of microseconds a call."""
    return Summary(1e6 / series["p50"], 1e6 / series["p99"], series["n"], name)


def run(context: Context, name: str, elements: int, target: float, calls: int) -> Record:
    if context.smoke:
        elements, calls = 1024, 20
    found = context.run_program(
        "bench_timing", "--elements", elements, "--rounds", 2 if context.smoke else 20, "--calls", calls,
        socket=context.gpu_daemon.socket_path,
    )  # fmt: skip
    return Record(
        name,
        "calls/s",
        "higher",
        as_rate(found["timed"]),
        as_rate(found["untimed"], "timing: false"),
        {
            "measured": f"adds of {elements} f32 with 32 requests under way, rounds of {calls} with and without timing",
            "n": "rounds",
            "gpu_us_p50": found["gpu"]["p50"],
            "blocking_ratio": found["untimed_blocking"]["p50"] / found["timed_blocking"]["p50"],
            "blocking_timed_p50_us": found["timed_blocking"]["p50"],
            "blocking_untimed_p50_us": found["untimed_blocking"]["p50"],
        },
        target=target,
    )


for _name, (_elements, _target, _calls) in SIZES.items():
    add(
        f"timing_{_name}",
        lambda c, n=f"timing_{_name}", e=_elements, t=_target, k=_calls: run(c, n, e, t, k),
        on_gpu=True,
        table=True,
    )
