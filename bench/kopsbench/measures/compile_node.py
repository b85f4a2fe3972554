"""Processes of one machine that start at once and need the same new kernels: how often they are compiled, and all processor time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..context import Context, Skipped
from ..nvrtc import Nvrtc
from ..record import Record, Summary
from ..user_kernels import KERNELS
from . import add

PROCESSES, COUNT, ROUNDS = 8, 20, 3
ARCH = "sm_90a"
MEASURED = (
    "processor time of all processes, user and system, from when each of them is ready to compile (imports done, connected, NVRTC loaded) "
    "until each has the binaries of the same new kernels"
)
TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


def new_kernels(count: int) -> list[tuple[str, str]]:
    """Texts and names of kernels that nobody has compiled: the tutorials', each with another number in its code."""
    made = []
    for i in range(count):
        kernel = KERNELS[i % len(KERNELS)]
        never = (1 << 20) + uuid.uuid4().int % (1 << 20)  # a grid that no launch has
        text, changed = re.subn(r"(__global__[^{;]*\{)", rf"\1\n    if (gridDim.z == {never}) return;", kernel.source)
        assert changed
        made.append((text, kernel.entry))
    return made


# ---- processor time of a daemon ----


def _parents() -> Iterator[tuple[int, int, int]]:
    """Every process: its id, its parent's, and its processor time with that of the ended children that it has waited for, in ticks."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            yield int(entry.name), int(fields[1]), sum(map(int, fields[11:15]))


def tree_ms(root: int) -> float:
    """Processor time of a process and all its descendants, those that have ended included, in milliseconds."""
    found = {pid: (parent, ticks) for pid, parent, ticks in _parents()}
    members = {root}
    while True:
        more = {pid for pid, (parent, _) in found.items() if parent in members} - members
        if not more:
            return sum(found[pid][1] for pid in members if pid in found) * TICK_MS
        members |= more


# ---- the two sides ----


def together(context: Context, arguments: Sequence[str], count: int, kernels: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """What processes found that were started, and then told to compile at once."""
    command = [sys.executable, "-m", "kopsbench.node_process", *arguments]
    started = [
        subprocess.Popen(command, env=context.of_children(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                raise RuntimeError(f"a process that was to compile ended with status {process.wait()}")
        line = json.dumps(kernels) + "\n"
        for process in started:
            assert process.stdin is not None
            process.stdin.write(line)
            process.stdin.flush()
        return [json.loads(process.stdout.readline()) for process in started if process.stdout is not None]
    finally:
        for process in started:
            process.kill()
            process.wait()


def round_ours(context: Context, daemon: Any, client: Any, processes: int, kernels: Sequence[tuple[str, str]]) -> dict[str, float]:
    before, began = client.stats()["kernels"], tree_ms(daemon.pid)
    answers = together(context, ("daemon", daemon.socket_path), processes, kernels)
    after, of_daemon = client.stats()["kernels"], tree_ms(daemon.pid) - began
    if len({tuple(answer["found"]) for answer in answers}) != 1:
        raise RuntimeError("the processes got different binaries")
    of_clients = sum(answer["cpu_ms"] for answer in answers)
    return {
        "cpu_s": (of_daemon + of_clients) / 1e3,
        "daemon_ms": of_daemon,
        "clients_ms": of_clients,
        "compiles": after["compiles"] - before["compiles"],
        "seconds": max(answer["seconds"] for answer in answers),
        "import_ms": sum(answer["ready_ms"] for answer in answers),
    }


def round_peer(context: Context, processes: int, kernels: Sequence[tuple[str, str]]) -> dict[str, float]:
    answers = together(context, ("nvrtc", ARCH), processes, kernels)
    return {
        "cpu_s": sum(answer["cpu_ms"] for answer in answers) / 1e3,
        "seconds": max(answer["seconds"] for answer in answers),
        "import_ms": sum(answer["ready_ms"] for answer in answers),
    }


def run(context: Context) -> list[Record]:
    """Without a GPU as well: nothing is launched."""
    nvrtc = Nvrtc()
    processes, count, rounds = (3, 5, 1) if context.smoke else (PROCESSES, COUNT, ROUNDS)
    ours: list[dict[str, float]] = []
    peers: list[dict[str, float]] = []
    with context.daemon(cuda=False) as daemon, context.connect(daemon.socket_path) as client:
        if "compile" not in client.info.features:
            raise Skipped("the daemon compiles nothing: no NVRTC, or no sandbox can be made here")
        ((text, entry),) = new_kernels(1)
        compiler = client.compile(text, [entry], arch=ARCH).compiler
        for _ in range(rounds):
            kernels = new_kernels(count)
            ours.append(round_ours(context, daemon, client, processes, kernels))
            peers.append(round_peer(context, processes, kernels))
    compiles = Summary(max(one["compiles"] for one in ours), max(one["compiles"] for one in ours), rounds)
    each = Summary(processes * count, processes * count, rounds, name := f"{processes} × NVRTC in process")
    told = f"compiles when {processes} processes that start at once need the same {count} new kernels"
    detail = {
        "measured": MEASURED,
        "processes": processes,
        "kernels": count,
        "n": "rounds, in turns",
        "compiler": compiler,
        "peer_compiler": f"NVRTC {nvrtc.version}, {nvrtc.path}",
        **{f"{name}_p50": of(ours, name).p50 for name in ("daemon_ms", "clients_ms", "seconds", "import_ms")},
        **{f"peer_{name}_p50": of(peers, name).p50 for name in ("seconds", "import_ms")},
        **context.python_link(),
    }
    return [
        Record("compile_node_cpu", "s", "lower", of(ours, "cpu_s"), of(peers, "cpu_s", name), detail, target=1 / 6),
        Record("compile_node_compiles", "compiles", "lower", compiles, each, {"measured": told}, target=count, absolute=True),
    ]


def of(rounds: Sequence[dict[str, float]], name: str, who: str | None = None) -> Summary:
    ordered = sorted(one[name] for one in rounds)
    return Summary(ordered[len(ordered) // 2], ordered[-1], len(ordered), who)


add("compile_node", run, on_gpu=False, table=True, seconds=120)
