"""What it costs that ops are timed, and that exact times could be had: rates of a daemon as it is by default, with timing,
against those of one that cannot use CUPTI, without. One daemon runs at a time, and which of them goes first alternates."""

from __future__ import annotations

from dataclasses import dataclass

from ..context import Context
from ..record import Record, Summary, merge
from . import add
from .timing import as_rate

DAEMON_ROUNDS, ROUNDS = 6, 8
KERNELS = ("--set", "kernels.user_kernels=all")
SIDES = {"timed": KERNELS, "untimed": (*KERNELS, "--set", "executors.cupti=off")}
TARGETS = {"tiny": 0.85, "50us": 0.99}
CALLS = {"tiny": 2000, "50us": 400}


@dataclass(frozen=True)
class Work:
    name: str
    title: str
    sizes: dict[str, int]  # that take a few us, and some 50, on an H200
    dtype: str = "f32"


WORKS = (
    Work("add", "add of {} f32", {"tiny": 1024, "50us": 20_000_000}),
    Work("gemm", "gemm of {}³, bf16", {"tiny": 256, "50us": 2560}, "bf16"),
    Work("kernel", "a user's vector_add of {} f32", {"tiny": 1024, "50us": 18_000_000}),
)


def of_daemon(context: Context, side: str) -> dict[tuple[str, str], Summary]:
    found = {}
    with context.daemon(*SIDES[side], cuda=True) as daemon:
        for work in WORKS:
            for size, elements in work.sizes.items():
                n = 16 if context.smoke else elements
                series = context.run_program(
                    "bench_timing", "--work", work.name, "--dtype", work.dtype, "--elements", n, "--side", side,
                    "--rounds", 2 if context.smoke else ROUNDS, "--calls", 20 if context.smoke else CALLS[size],
                    socket=daemon.socket_path,
                )  # fmt: skip
                found[work.name, size] = as_rate(series[side])
    return found


def run(context: Context) -> list[Record]:
    found: dict[str, list[dict[tuple[str, str], Summary]]] = {side: [] for side in SIDES}
    for turn in range(2 if context.smoke else DAEMON_ROUNDS):
        for side in SIDES if turn % 2 == 0 else reversed(SIDES):
            found[side].append(of_daemon(context, side))
    records = []
    for work in WORKS:
        for size, elements in work.sizes.items():
            ours, peer = ([one[work.name, size] for one in found[side]] for side in SIDES)
            records.append(
                Record(
                    f"timing_off_{work.name}_{size}",
                    "calls/s",
                    "higher",
                    merge(ours),
                    merge(peer, "timing: false, executors.cupti = off"),
                    {
                        "measured": f"{work.title.format(elements)}, 32 requests under way, rounds of {CALLS[size]}; with timing in a"
                        " daemon as it is by default, without in one that cannot use CUPTI",
                        "n": "rounds",
                        "p50_by_daemon": [one.p50 for one in ours],
                        "peer_p50_by_daemon": [one.p50 for one in peer],
                    },
                    target=TARGETS[size],
                )
            )
    return records


add("timing_off", run, on_gpu=True, table=True, seconds=300)
