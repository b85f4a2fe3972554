"""What recording a trace costs those who work meanwhile, and whether it has all of their calls."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from ..context import Context
from ..record import Record, Summary
from . import add

CLIENTS, MILLISECONDS, ROUNDS = 8, 500, 21
TINY = 1024  # floats
# What an add of some 50 us has, on two cores and on an H200.
LARGE_ON_HOST, LARGE_ON_GPU = 1 << 19, 1 << 24
TARGETS = {"tiny": 0.9, "50us": 0.99}


def clients(context: Context, socket: str, elements: int) -> dict[str, Any]:
    milliseconds = 50 if context.smoke else MILLISECONDS
    return context.run_program(
        "bench_clients", "--clients", CLIENTS, "--milliseconds", milliseconds, "--elements", elements, socket=socket
    )  # fmt: skip


def recorded(context: Context, socket: str, elements: int, path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """What the clients found while kopsctl recorded them, and what it recorded."""
    command = [str(context.program("kopsctl")), "--socket", socket, "trace", "--seconds", "600", "--output", str(path)]
    # The clients take longer to start than the recorder.
    with subprocess.Popen([*command, "--events", "65536"], stdout=subprocess.DEVNULL) as recorder:
        try:
            found = clients(context, socket, elements)
        finally:
            recorder.send_signal(signal.SIGINT)
    with path.open(encoding="utf-8") as file:
        return found, json.load(file)["otherData"]["kops"]


def run(context: Context, prefix: str, socket: str, large: int) -> list[Record]:
    records = []
    for name, elements in (("tiny", TINY), ("50us", large)):
        plain: list[float] = []
        traced: list[float] = []
        kept, dropped = 0, 0
        with tempfile.TemporaryDirectory(prefix="kops-trace-") as folder:
            clients(context, socket, elements)
            for _ in range(2 if context.smoke else ROUNDS):
                plain.append(clients(context, socket, elements)["total_per_s"])
                found, said = recorded(context, socket, elements, Path(folder, "trace.json"))
                traced.append(found["total_per_s"])
                kept, dropped = kept + said["events"], dropped + said["dropped"]
        records.append(
            Record(
                f"{prefix}_{name}_rate",
                "calls/s",
                "higher",
                Summary(median(traced), min(traced), len(traced)),
                Summary(median(plain), min(plain), len(plain), "without a trace"),
                {
                    "measured": f"blocking adds of {elements} f32 by {CLIENTS} processes while `kopsctl trace` records them, in turns with"
                    " rounds without",
                    "p99": "the slowest round",
                    "n": "rounds",
                    "events": kept,
                    "dropped": dropped,
                },
                target=TARGETS[name],
            )
        )
    return records


def run_gpu(context: Context) -> list[Record]:
    # The stand-in for a GPU computes on the host.
    return run(context, "trace", context.gpu_daemon.socket_path, LARGE_ON_HOST if context.smoke else LARGE_ON_GPU)


def run_host(context: Context) -> list[Record]:
    with context.daemon(cuda=False) as daemon:
        return run(context, "trace_host", daemon.socket_path, LARGE_ON_HOST)


add("trace", run_gpu, on_gpu=True, seconds=150)
add("trace_host", run_host, on_gpu=False, seconds=150)
