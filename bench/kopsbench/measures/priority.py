"""A small add of one client while another keeps large gemms queued."""

from __future__ import annotations

from ..context import Context
from ..record import Record
from . import add
from .noop import summary

SIDE = 8192
TARGET_US = 1500.0


def run(context: Context) -> list[Record]:
    blocks, calls, side = (1, 4, 64) if context.smoke else (3, 100, SIDE)
    found = context.run_program(
        "bench_priority", "--blocks", blocks, "--calls", calls, "--side", side, socket=context.gpu_daemon.socket_path
    )
    series = found["series"]
    detail = {
        "measured": f"kops_run() of an add of 1024 f32 while another client always has 4 f32 gemms of {side}³ under way",
        "gemm_us": found["gemm_us"],
        "gemms_meanwhile": found["gemms"],
        "alone_p50": series["alone"]["p50"],
        "alone_p99": series["alone"]["p99"],
    }
    return [
        Record(
            "priority_high_beside_gemms",
            "us",
            "lower",
            summary(series["high"]),
            summary(series["normal"], "the same add with normal priority"),
            detail,
            target=TARGET_US,
            absolute=True,
            statistic="p99",
        )
    ]


add("priority", run, on_gpu=True, table=True)
