"""Time and memory of a daemon with executors that has little to do, and of an executor."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import suppress
from functools import partial
from typing import Any

from support import proc

from ..context import Context
from ..isolation.scene import Scene, bounded
from ..record import Record, Summary, merge
from . import add
from .isolation_calls import MODES, in_turns

ROUNDS = 3
IDLE_S = 4.0
MIB = 1 << 20
SPARE_S = 20.0


def one(value: float) -> Summary:
    return Summary(value, value, 1, max=value)


def ticks(scene: Scene) -> int:
    return sum(proc.cpu_ticks(pid) for pid in (scene.daemon.pid, *proc.executors(scene.daemon.pid)))


def idle_of(context: Context, isolate: str) -> dict[str, Summary]:
    """Of a daemon that is ready, has done one add, and then has nothing to do."""
    seconds = 0.2 if context.smoke else IDLE_S
    with Scene(context, isolate=isolate) as scene:
        found = {"ready": one(scene.ready_s * 1e3), "rss_ready": one(proc.status(scene.daemon.pid, "VmRSS") / 1024)}
        scene.wait_for_work()
        found["rss"] = one(proc.status(scene.daemon.pid, "VmRSS") / 1024)
        scene.wait(seconds / 4)
        before = ticks(scene)
        scene.wait(seconds)
        found["idle_cpu"] = one(100 * (ticks(scene) - before) / os.sysconf("SC_CLK_TCK") / seconds)
    return found


IDLE = {
    "ready": ("ms", "from the start of the process until it is ready; no context is made by then"),
    "rss_ready": ("MiB", "VmRSS of the daemon's process when it is ready"),
    "rss": ("MiB", "the same when an add has run and all contexts are made"),
    "idle_cpu": ("%", f"share of one core: user and system time of the daemon and its executors, for {IDLE_S:g} s without a request"),
}


def run_idle(context: Context) -> list[Record]:
    found = in_turns(2 if context.smoke else ROUNDS, partial(idle_of, context))
    records = []
    for name, (unit, measured) in IDLE.items():
        ours, peer = (merge([its[name] for its in found[mode]], f"executors.isolate = {mode}") for mode in MODES)
        detail = {"measured": f"{measured}; executors.isolate = user against off"}
        records.append(Record(f"isolation_costs_{name}", unit, "lower", ours, peer, detail))
    return records


# ---- executors ----


def listed(pids: list[int]) -> dict[str, str]:
    """MiB of each process, as nvidia-smi tells."""
    if shutil.which("nvidia-smi") is None:
        return {}
    with suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
        rows = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
        found = dict(row.split(", ", 1) for row in rows if ", " in row)
        return {str(pid): found[str(pid)] for pid in pids if str(pid) in found}
    return {}


def wait_for_a_spare(scene: Scene) -> float:
    """Milliseconds from the start of a process until it is a spare. It warms up before it is one."""
    until = time.monotonic() + SPARE_S
    while time.monotonic() < until:
        for row in scene.stats()["executors"]:
            if row["state"] == "spare":
                return float(row["uptime_s"]) * 1e3
        time.sleep(0.001)
    raise RuntimeError(f"no spare within {SPARE_S:g} s")


def executors_of(context: Context, spares: int) -> dict[str, Any]:
    free = []

    def look(scene: Scene) -> None:
        scene.settle()
        free.append(scene.gpu_free() / MIB)

    with Scene(context, spares=spares) as scene:
        start = time.perf_counter()
        first_us = scene.work()
        found: dict[str, Any] = {"first_op_ms": (time.perf_counter() - start) * 1e3, "common_ms": scene.ready_s * 1e3 + first_us * 1e-3}
        if spares:
            found["spare_ms"] = wait_for_a_spare(scene)
        look(scene)
        (culprit,) = scene.add_culprits([1])
        found["domain_ms"] = culprit.said["us"] * 1e-3
        look(scene)
        executors = proc.executors(scene.daemon.pid)
        found["nvidia_smi_mib"] = listed([scene.daemon.pid, *executors])
        found["rss_mib"] = {str(pid): proc.status(pid, "VmRSS") / 1024 for pid in executors}
        found["executors"] = [{key: row.get(key) for key in ("pid", "state", "domain", "uptime_s")} for row in scene.stats()["executors"]]
        log = scene.daemon.log().splitlines()
    found["log"] = [line for line in log if "event=executor " in line]
    return {**found, "free_mib": free}


def run_executors(context: Context) -> list[Record]:
    n_rounds = 1 if context.smoke else ROUNDS
    gpu: dict[str, list[Summary]] = {"common": [], "spare": [], "domain": []}
    took: dict[str, list[Summary]] = {"common": [], "spare": [], "domain": [], "domain_with_spare": []}
    details = []
    for _ in range(n_rounds):
        before = free_alone(context)
        without, with_spare = executors_of(context, 0), executors_of(context, 1)
        common, domain = before - without["free_mib"][0], without["free_mib"][0] - without["free_mib"][1]
        for name, mib in (("common", common), ("domain", domain), ("spare", before - with_spare["free_mib"][0] - common)):
            gpu[name].append(one(mib))
        for name, ms in (
            ("common", without["common_ms"]), ("domain", without["domain_ms"]), ("domain_with_spare", with_spare["domain_ms"]),
            ("spare", with_spare["spare_ms"]),
        ):  # fmt: skip
            took[name].append(one(ms))
        details.append({"spares_0": without, "spares_1": with_spare, "free_before_mib": before})
    detail = {"rounds": details}
    by_memory = {"measured": "GPU memory of an idle executor, by what is free", **detail}
    what = {
        "common": "start of the daemon until the first add's reply",
        "spare": "start of the process until it has its context",
        "domain": "first launch of a user's kernel, no spare, the kernel is compiled",
        "domain_with_spare": "the same with a spare",
    }
    return [
        *(bounded(f"isolation_costs_gpu_{name}", "MiB", merge(its), by_memory) for name, its in gpu.items()),
        *(bounded(f"isolation_costs_make_{name}", "ms", merge(its), {"measured": what[name], **detail}) for name, its in took.items()),
    ]


def free_alone(context: Context) -> float:
    """MiB that are free without a daemon, once those of the one before are given back."""
    free = -1
    while (now := int(context.torch.cuda.mem_get_info()[0])) > free:
        free = now
        time.sleep(0.01 if context.smoke else 0.3)
    return free / MIB


add("isolation_costs_idle", run_idle, on_gpu=True, seconds=120)
add("isolation_costs_executors", run_executors, on_gpu=True, seconds=120)
